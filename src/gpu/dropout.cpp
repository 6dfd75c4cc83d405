// Computes Dropout. It drops the same elements as on the host.
#include <cmath>

#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/generator/random_key.h"

namespace treadle::gpu {
namespace {

struct DropoutState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  double drop = 0;  // fraction of the elements that are dropped
};

struct Dropout {
  int64_t count;
  uint64_t key;
  bool has_mask;

  static Dropout bind(BindContext& c) {
    return {count32(c.num_elements(0)), ops::random_key(c, static_cast<uint64_t>(c.get_int("seed", 0))), c.has_output(1)};
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<DropoutState>();
    // An element is dropped if its random number, an integer of 53 bits, is below the ratio times 2^53.
    const auto limit = static_cast<uint64_t>(std::ceil(std::ldexp(state.drop, 53)));
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.out<void>(1)).word(uint32_t{has_mask}).word(count32(count));
    for (const uint64_t value : {key, c.run_id, limit}) push.word(static_cast<uint32_t>(value)).word(static_cast<uint32_t>(value >> 32));
    push.word(static_cast<float>(1 / (1 - state.drop)));
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32((count + 1) / 2)));
  }
};

}  // namespace

DeviceKernel find_dropout(const Graph& graph, const Node& node) {
  static const KernelDef dropout = kernel<Dropout>("gpu");
  if (!node.domain.empty() || node.op_type != "Dropout") return {};
  auto state = std::make_shared<DropoutState>();
  const auto constant = [&](size_t input) { return node.has_input(input) ? graph.constant_tensor(node.inputs[input]) : nullptr; };
  const Tensor *const ratio = constant(1), *const training = constant(2);
  // If the ratio or the mode is known only during the run, the host computes the node.
  if ((node.has_input(1) && !ratio) || (node.has_input(2) && !training)) return {};
  if ((ratio && ratio->num_elements() != 1) || (training && training->num_elements() != 1)) return {};
  if (training && *training->data<bool>()) {
    if (ratio && ratio->dtype() != DType::float32 && ratio->dtype() != DType::float64) return {};
    state->drop = !ratio ? 0.5 : ratio->dtype() == DType::float64 ? *ratio->data<double>() : static_cast<double>(*ratio->data<float>());
    if (!(state->drop >= 0 && state->drop < 1)) return {};  // the host reports the error
  }
  state->shader = find_shader("dropout", graph.type(node.inputs[0]).dtype);
  return state->shader ? DeviceKernel{&dropout, std::move(state)} : DeviceKernel();
}

}  // namespace treadle::gpu
