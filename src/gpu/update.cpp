// Computes the updates of parameters by optimizers, and of a trainer's other states.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "core/ranks/overflow_report.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/training/optimizers.h"
#include "treadle/error.h"

namespace treadle::gpu {
namespace {

// The kinds of updates, with their numbers in update.comp.
enum class UpdateKind : uint32_t { momentum, adagrad, adam, adam_update, rmsprop, lion, accumulate, average, assign };
constexpr std::string_view kLazy = "Lazy";  // name prefix of operators that update only some rows

struct UpdateRow {
  std::string_view op_type;
  UpdateKind kind;
  int num_states;  // states per parameter; -1: not an optimizer: one state and one value
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

/// Returns the logarithm of an attribute such as a beta, computed in float64.
float logarithm(const BindContext& c, std::string_view name, float otherwise) {
  return static_cast<float>(std::log(static_cast<double>(c.get_float(name, otherwise))));
}

struct UpdateState final : FaultState {
  const vulkan::Shader* shader = nullptr;
  const UpdateRow* row = nullptr;
  bool of_rows = false;
};

/// The arguments of the shader update.comp. An optimizer's inputs are the learning rate, the update count, the parameter, its gradient, its
/// states and, if only some rows are updated, the indices of these rows.
struct Update {
  int64_t count = 0, whole = 0;  // elements of the gradient; elements of the parameter
  int64_t width = 0, rows = 0;
  bool wide_rate;
  float values[5];

  static Update bind(BindContext& c) {
    const auto& state = c.packed<UpdateState>();
    const UpdateRow& row = *state.row;
    Update k{.wide_rate = row.num_states >= 0 && c.dtype(0) == DType::float64, .values = {}};
    if (row.num_states >= 0) {
      const auto updated = ops::UpdatedElements::bind(c, row.num_states);
      k.whole = updated.n, k.rows = updated.extent, k.width = updated.width;
      k.count = state.of_rows ? updated.rows * updated.width : updated.n;
    } else {
      k.whole = k.count = ops::bind_state_update(c);
    }
    count32(k.whole), count32(k.count);
    k.take_attributes(c, row.kind);
    return k;
  }

  void run(RunContext& c) const {
    const auto& state = c.packed<UpdateState>();
    const bool optimizes = state.row->num_states >= 0;
    vulkan::VulkanStream::FaultSite site;
    if (state.of_rows)
      site = state.fault(fmt::format("a place is outside of the {} rows, or T is less than 1", rows));
    else if (state.row->kind == UpdateKind::adam_update)
      site = state.fault("T is less than 1; updates count from 1");
    if (state.of_rows) keep_other_rows(c, state.row->num_states);
    Push push;
    for (const int output : {0, 1, 2}) push.pointer(c.out<void>(output));
    for (const int input : {0, 1, 2, 3})
      push.pointer(input < 2 + std::max(state.row->num_states, 0) ? c.in<void>(input + (optimizes ? 2 : 0)) : nullptr);
    push.pointer(optimizes ? c.in<void>(0) : nullptr).pointer(optimizes ? c.in<void>(1) : nullptr);
    push.fault(site).word(site.number).word(uint32_t{wide_rate}).word(count32(count));
    for (const float value : values) push.word(value);
    push.pointer(state.of_rows ? c.in<void>(4 + state.row->num_states) : nullptr);
    push.word(static_cast<uint32_t>(width)).word(static_cast<uint32_t>(rows));
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(count)));
  }

 private:
  // Copies the old parameter and its states to the outputs, unless these are in the same memory. Only some rows are then updated.
  void keep_other_rows(RunContext& c, int num_states) const {
    for (int k = 0; k <= num_states; ++k) {
      const void* const old = c.in<void>(k == 0 ? 2 : 3 + k);
      if (void* const made = c.out<void>(k); made != old)
        stream().copy(made, old, static_cast<size_t>(whole) * sizeof(float), CopyKind::device_to_device);
    }
  }
  void take_attributes(const BindContext& c, UpdateKind kind) {
    const auto set = [this](std::initializer_list<float> given) { std::copy(given.begin(), given.end(), values); };
    switch (kind) {
      case UpdateKind::momentum:
        return set({c.get_float("alpha"), c.get_float("beta"), c.get_float("norm_coefficient", 0),
                    c.get_string("mode") == "nesterov" ? 1.0F : 0.0F});
      case UpdateKind::adagrad:
        return set({c.get_float("decay_factor", 0), c.get_float("epsilon", 1e-6F), c.get_float("norm_coefficient", 0)});
      case UpdateKind::adam:
        return set({logarithm(c, "alpha", 0.9F), logarithm(c, "beta", 0.999F), c.get_float("epsilon", 1e-6F),
                    c.get_float("norm_coefficient", 0), c.get_float("norm_coefficient_post", 0)});
      case UpdateKind::adam_update:
        return set({logarithm(c, "beta1", 0.9F), logarithm(c, "beta2", 0.999F), c.get_float("epsilon", 1e-8F),
                    c.get_float("weight_decay", 0), c.get_int("decoupled") != 0 ? 1.0F : 0.0F});
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

struct LambState final : FaultState {
  const vulkan::Shader* passes[3] = {};
};

/// The arguments of the shader lamb.comp.
struct Lamb {
  int64_t count, parts;
  bool wide_rate;
  float values[4];

  static Lamb bind(BindContext& c) {
    constexpr int64_t kMostParts = 1024, kGroup = 256;
    const int64_t count = count32(ops::UpdatedElements::bind(c, 2).n);
    const Lamb k{
        count,
        std::clamp<int64_t>((count + kGroup - 1) / kGroup, 1, kMostParts),
        c.dtype(0) == DType::float64,
        {logarithm(c, "beta1", 0.9F), logarithm(c, "beta2", 0.999F), c.get_float("epsilon", 1e-6F), c.get_float("weight_decay", 0)}};
    c.request_scratch(static_cast<size_t>(k.parts) * 2 * sizeof(float));
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<LambState>();
    const auto site = state.fault("T is less than 1; updates count from 1");
    Push push;
    for (const int output : {0, 1, 2}) push.pointer(c.out<void>(output));
    for (const int input : {2, 3, 4, 5}) push.pointer(c.in<void>(input));
    push.pointer(c.scratch<void>()).pointer(c.in<void>(0)).pointer(c.in<void>(1));
    push.fault(site).word(site.number).word(uint32_t{wide_rate}).word(count32(count));
    push.word(static_cast<uint32_t>(parts));
    for (const float value : values) push.word(value);
    stream().dispatch(*state.passes[0], push.bytes(), groups_for(parts));
    stream().dispatch(*state.passes[1], push.bytes(), groups_for(1));
    stream().dispatch(*state.passes[2], push.bytes(), groups_over(count32(count)));
  }
};

struct UnscaleState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  OverflowReport* report = nullptr;  // report of the trainer; null: overflows are not reported
};

/// Computes UnscaleGradient. If the node has a report, the host waits for the result, so that nothing is updated after an overflow.
struct Unscale {
  int64_t count, groups;

  static Unscale bind(BindContext& c) {
    constexpr int64_t kMostGroups = 256, kElementsOfGroup = 4096;
    const int64_t count = count32(ops::bind_unscale(c));
    const Unscale k{count, std::clamp<int64_t>(count / kElementsOfGroup, 1, kMostGroups)};
    c.request_scratch(static_cast<size_t>(k.groups) * sizeof(uint32_t));
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<UnscaleState>();
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(1)).pointer(c.scratch<void>());
    push.word(count32(count)).word(static_cast<uint32_t>(groups));
    stream().dispatch(*state.shader, push.bytes(), groups_for(groups));
    if (!state.report) return;
    std::vector<uint32_t> overflows(static_cast<size_t>(groups));
    float numbers[2];  // the factor by which the loss was scaled, and the loss
    stream().copy(overflows.data(), c.scratch<void>(), overflows.size() * sizeof(uint32_t), CopyKind::device_to_host);
    for (const int i : {0, 1}) stream().copy(&numbers[i], c.in<void>(i + 1), sizeof(float), CopyKind::device_to_host);
    stream().synchronize();
    if (std::none_of(overflows.begin(), overflows.end(), [](uint32_t overflow) { return overflow != 0; })) return;
    state.report->set(numbers[1]);
    throw Error(ErrorCode::invalid_argument, fmt::format("the gradient is infinite or NaN with the loss scaled by {}", numbers[0]));
  }
};

bool is_float32(const Graph& graph, const Node& node, size_t first, size_t end) {
  for (size_t i = first; i < end; ++i)
    if (!node.has_input(i) || graph.type(node.inputs[i]).dtype != DType::float32) return false;
  return true;
}

}  // namespace

DeviceKernel find_update(const Graph& graph, const Node& node) {
  static const KernelDef update = kernel<Update>("gpu"), lamb = kernel<Lamb>("gpu"), unscale = kernel<Unscale>("gpu");
  if (node.domain != "treadle" && node.domain != "ai.onnx.preview.training") return {};
  for (size_t i = 0; i < node.outputs.size(); ++i)
    if (!node.has_output(i)) return {};
  if (node.is("UnscaleGradient", "treadle")) {
    auto state = std::make_shared<UnscaleState>();
    state->shader = find_shader("unscale", DType::float32);
    if (const int64_t report = node.attributes.get_int("report", 0); report != 0) state->report = &OverflowReport::find(report);
    return {&unscale, std::move(state)};
  }
  if (node.is("LambUpdate", "treadle")) {
    if (node.inputs.size() != 6 || !is_float32(graph, node, 2, 6)) return {};
    auto state = std::make_shared<LambState>();
    for (uint32_t pass = 0; pass < 3; ++pass) state->passes[pass] = find_shader("lamb", DType::float32, std::span(&pass, 1));
    state->node = describe(node);
    return {&lamb, std::move(state)};
  }
  const bool of_rows = node.domain == "treadle" && node.op_type.starts_with(kLazy);
  const std::string_view name = std::string_view(node.op_type).substr(of_rows ? kLazy.size() : 0);
  const auto* const row = std::find_if(std::begin(kUpdates), std::end(kUpdates), [&](const UpdateRow& r) { return r.op_type == name; });
  if (row == std::end(kUpdates) || (of_rows && row->num_states < 0)) return {};
  const size_t parameter = row->num_states < 0 ? 0 : 2, operands = row->num_states < 0 ? 2 : 4 + static_cast<size_t>(row->num_states);
  if (node.inputs.size() != operands + (of_rows ? 1 : 0)) return {};  // a node for several parameters is not supported
  if (!is_float32(graph, node, parameter, operands)) return {};
  if (of_rows &&
      (!node.has_input(operands) || graph.type(node.inputs[operands]).dtype != DType::int64 || graph.type(node.inputs[2]).shape->empty()))
    return {};
  if (parameter == 2 && graph.type(node.inputs[1]).dtype != DType::int64) return {};
  if (row->kind == UpdateKind::momentum)
    if (const std::string_view mode = node.attributes.get_string("mode", ""); mode != "standard" && mode != "nesterov") return {};
  auto state = std::make_shared<UpdateState>();
  const uint32_t constants[] = {static_cast<uint32_t>(row->kind), uint32_t{of_rows}};
  state->shader = find_shader("update", DType::float32, constants);
  state->row = row;
  state->of_rows = of_rows;
  state->node = describe(node);
  return {&update, std::move(state)};
}

}  // namespace treadle::gpu
