// Updates of parameters by optimizers, and of a trainer's other states.
#include <cmath>
#include <iterator>

#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/checks.h"

namespace treadle::gpu {
namespace {

// As in update.comp.
enum class UpdateKind : uint32_t { momentum, adagrad, adam, adam_update, rmsprop, lion, accumulate, average, assign };

struct UpdateRow {
  std::string_view op_type;
  UpdateKind kind;
  int num_states;  // of the parameter; -1: no optimizer, but an operator of one state and one value
};
constexpr UpdateRow kUpdates[] = {{"Momentum", UpdateKind::momentum, 1},
                                  {"Adagrad", UpdateKind::adagrad, 1},
                                  {"Adam", UpdateKind::adam, 2},
                                  {"AdamUpdate", UpdateKind::adam_update, 2},
                                  {"RMSPropUpdate", UpdateKind::rmsprop, 2},
                                  {"LionUpdate", UpdateKind::lion, 1},
                                  {"AccumulateGradient", UpdateKind::accumulate, -1},
                                  {"AverageParameter", UpdateKind::average, -1},
                                  {"Assign", UpdateKind::assign, -1}};

struct UpdateState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  const UpdateRow* row = nullptr;
  std::string node;  // for errors
};

/// The shader update.comp. An optimizer's inputs are the rate, the number of the update, the parameter, its gradient and its states.
struct Update {
  int64_t count;
  bool wide_rate;
  float values[5];

  static Update bind(BindContext& c) {
    const UpdateRow& row = *c.packed<UpdateState>().row;
    const int parameter = row.num_states < 0 ? 0 : 2;
    Update k{c.num_elements(parameter), row.num_states >= 0 && c.dtype(0) == DType::float64, {}};
    count32(k.count);
    for (int i = 0; i < parameter; ++i) ops::check_equal(c.num_elements(i), 1, "elements of R and T");
    for (int i = parameter; i < c.num_inputs(); ++i)
      ops::check_equal(c.num_elements(i), k.count, "elements of a parameter, its gradient and its states");
    k.take_attributes(c, row.kind);
    return k;
  }

  void run(RunContext& c) const {
    const auto& state = c.packed<UpdateState>();
    const bool optimizes = state.row->num_states >= 0;
    vulkan::VulkanStream::FaultSite site;
    if (state.row->kind == UpdateKind::adam_update) site = stream().fault_site(state.node + ": T is less than 1; updates count from 1");
    Push push;
    for (const int output : {0, 1, 2}) push.pointer(c.out<void>(output));
    for (const int input : {0, 1, 2, 3})
      push.pointer(input < 2 + std::max(state.row->num_states, 0) ? c.in<void>(input + (optimizes ? 2 : 0)) : nullptr);
    push.pointer(optimizes ? c.in<void>(0) : nullptr).pointer(optimizes ? c.in<void>(1) : nullptr);
    push.pointer(reinterpret_cast<const void*>(site.address)).word(site.number).word(uint32_t{wide_rate}).word(count32(count));
    for (const float value : values) push.word(value);
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(count)));
  }

 private:
  void take_attributes(const BindContext& c, UpdateKind kind) {
    const auto set = [this](std::initializer_list<float> given) { std::copy(given.begin(), given.end(), values); };
    const auto logarithm = [&](std::string_view name, float otherwise) {
      return static_cast<float>(std::log(static_cast<double>(c.get_float(name, otherwise))));
    };
    switch (kind) {
      case UpdateKind::momentum:
        return set({c.get_float("alpha"), c.get_float("beta"), c.get_float("norm_coefficient", 0),
                    c.get_string("mode") == "nesterov" ? 1.0F : 0.0F});
      case UpdateKind::adagrad:
        return set({c.get_float("decay_factor", 0), c.get_float("epsilon", 1e-6F), c.get_float("norm_coefficient", 0)});
      case UpdateKind::adam:
        return set({c.get_float("alpha", 0.9F), c.get_float("beta", 0.999F), c.get_float("epsilon", 1e-6F),
                    c.get_float("norm_coefficient", 0), c.get_float("norm_coefficient_post", 0)});
      case UpdateKind::adam_update:
        return set({logarithm("beta1", 0.9F), logarithm("beta2", 0.999F), c.get_float("epsilon", 1e-8F), c.get_float("weight_decay", 0),
                    c.get_int("decoupled") != 0 ? 1.0F : 0.0F});
      case UpdateKind::rmsprop:
        return set(
            {c.get_float("smoothing", 0.99F), c.get_float("momentum", 0), c.get_float("epsilon", 1e-8F), c.get_float("weight_decay", 0)});
      case UpdateKind::lion: return set({c.get_float("beta1", 0.9F), c.get_float("beta2", 0.99F), c.get_float("weight_decay", 0)});
      case UpdateKind::accumulate: return set({c.get_float("factor", 1)});
      case UpdateKind::average: return set({1 - c.get_float("decay", 0)});
      case UpdateKind::assign: return;
    }
  }
};

}  // namespace

DeviceKernel find_update(const Graph& graph, const Node& node) {
  static const KernelDef update = kernel<Update>("gpu");
  if (node.domain != "treadle" && node.domain != "ai.onnx.preview.training") return {};
  const auto* const row =
      std::find_if(std::begin(kUpdates), std::end(kUpdates), [&](const UpdateRow& r) { return r.op_type == node.op_type; });
  if (row == std::end(kUpdates)) return {};
  const size_t parameter = row->num_states < 0 ? 0 : 2, operands = row->num_states < 0 ? 2 : 4 + static_cast<size_t>(row->num_states);
  if (node.inputs.size() != operands) return {};  // of some rows, or of several parameters
  for (size_t i = parameter; i < operands; ++i)
    if (!node.has_input(i) || graph.type(node.inputs[i]).dtype != DType::float32) return {};
  for (size_t i = 0; i < node.outputs.size(); ++i)
    if (!node.has_output(i)) return {};
  if (parameter == 2 && graph.type(node.inputs[1]).dtype != DType::int64) return {};
  if (row->kind == UpdateKind::momentum)
    if (const std::string_view mode = node.attributes.get_string("mode", ""); mode != "standard" && mode != "nesterov") return {};
  auto state = std::make_shared<UpdateState>();
  const uint32_t constants[] = {static_cast<uint32_t>(row->kind)};
  state->shader = find_shader("update", DType::float32, constants);
  state->row = row;
  state->node = describe(node);
  return {&update, std::move(state)};
}

}  // namespace treadle::gpu
