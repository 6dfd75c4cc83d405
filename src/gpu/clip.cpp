// Computes Clip for all types. The bounds may be known only during the run.
#include "gpu/launch.h"
#include "gpu/shader_writer.h"
#include "ops/checks.h"

namespace treadle::gpu {
namespace {

struct ClipState final : PackedState {
  const vulkan::Shader* shader = nullptr;
};

struct Clip {
  int64_t count;
  bool has_bound[2];  // [0]: a lower bound is given; [1]: an upper bound is given

  static Clip bind(BindContext& c) {
    Clip k{count32(c.num_elements(0)), {c.has_input(1), c.has_input(2)}};
    for (const int i : {1, 2})
      if (c.has_input(i)) ops::check_equal(c.num_elements(i), 1, i == 1 ? "elements of min" : "elements of max");
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0));
    for (const int i : {0, 1})
      if (has_bound[i]) push.pointer(c.in<void>(i + 1));
    push.word(static_cast<uint32_t>(count)).word(int32_t{1});
    for (const int i : {0, 1})
      if (has_bound[i]) push.word(int32_t{0});  // stride 0: one element is the bound for all elements
    stream().dispatch(*c.packed<ClipState>().shader, push.bytes(), groups_over(static_cast<uint32_t>(count)));
  }
};

}  // namespace

DeviceKernel find_clip(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<Clip>("gpu");
  Arithmetic type{};
  const DType dtype = graph.type(node.inputs[0]).dtype;
  if (!node.is("Clip", "") || !arithmetic_of(dtype, type)) return {};
  const bool has_low = node.has_input(1), has_high = node.has_input(2);
  const DType types[] = {dtype, dtype, dtype};
  const std::span<const DType> operands(types, 1 + size_t{has_low} + size_t{has_high});
  ShaderWriter shader(operands, dtype, 1, false);
  Value x = shader.load(0);
  if (has_low) {
    const Value low = shader.load(1);
    x = shader.select(shader.less(x, low), low, x);
  }
  if (has_high) {
    const Value high = shader.load(has_low ? 2 : 1);
    x = shader.select(shader.less(high, x), high, x);
  }
  shader.store(x);
  auto state = std::make_shared<ClipState>();
  state->shader = &vulkan::Shader::of(shader.finish(), {}, "Clip");
  return {&kernel, std::move(state)};
}

}  // namespace treadle::gpu
