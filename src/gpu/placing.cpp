// Computes CumSum, CumProd, OneHot, Trilu, and functions of float64.
#include <algorithm>
#include <iterator>

#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/math/axis_rows.h"
#include "ops/tensor/index_plans.h"
#include "ops/tensor/movement.h"

namespace treadle::gpu {
namespace {

struct PlacingState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  int64_t words = 1;               // number of words of an element that is only copied
  DType index = DType::undefined;  // the type in which OneHot reads its indices
};

struct Cumulative {
  ops::AxisRows rows;
  bool exclusive, reverse;

  static Cumulative bind(BindContext& c) {
    count32(c.num_elements(0));
    return {ops::cumulative_rows(c), c.get_int("exclusive") != 0, c.get_int("reverse") != 0};
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0));
    for (const int64_t extent : {rows.outer, rows.length, rows.inner}) push.word(static_cast<uint32_t>(extent));
    push.word(uint32_t{exclusive}).word(uint32_t{reverse});
    stream().dispatch(*c.packed<PlacingState>().shader, push.bytes(), groups_for(rows.outer * rows.inner));
  }
};

struct OneHot {
  ops::OneHotPlan plan;
  DType given;
  int64_t indices;

  static OneHot bind(BindContext& c) {
    const auto& state = c.packed<PlacingState>();
    count32(c.output_shape(0).num_elements() * state.words);
    const OneHot k{ops::OneHotPlan::bind(c), c.dtype(0), c.num_elements(0)};
    if (k.given != state.index) c.request_scratch(static_cast<size_t>(k.indices) * bits_of(state.index) / 8);
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<PlacingState>();
    const int64_t count = plan.outer * plan.depth * plan.inner * state.words;
    if (count == 0) return;
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(2));
    push.pointer(convert_elements(given, c.in<void>(0), state.index, c.scratch<void>(), indices));
    for (const int64_t value : {count, state.words, plan.depth, plan.inner}) push.word(static_cast<uint32_t>(value));
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(count)));
  }
};

struct Trilu {
  ops::TriluPlan plan;

  static Trilu bind(BindContext& c) {
    count32(c.num_elements(0) * c.packed<PlacingState>().words);
    return {ops::TriluPlan::bind(c)};
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<PlacingState>();
    const int64_t count = plan.matrices * plan.rows * plan.columns * state.words;
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0));
    for (const int64_t value : {count, state.words, plan.rows, plan.columns, std::clamp(plan.k, -plan.rows, plan.columns)})
      push.word(static_cast<uint32_t>(value));
    push.word(uint32_t{plan.upper});
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(count)));
  }
};

struct WideFunction {
  int64_t count;

  static WideFunction bind(BindContext& c) { return {count32(c.num_elements(0))}; }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).word(static_cast<uint32_t>(count));
    stream().dispatch(*c.packed<PlacingState>().shader, push.bytes(), groups_over(count32(count)));
  }
};

// The functions, in the order of their numbers in unary.comp.
constexpr std::string_view kWideFunctions[] = {"Exp",      "Log",  "Sqrt",  "Reciprocal", "Sigmoid", "Tanh",
                                               "Softplus", "Relu", "Floor", "Ceil",       "Round"};

DeviceKernel with(const KernelDef& kernel, std::shared_ptr<PlacingState> state) {
  return state->shader ? DeviceKernel{&kernel, std::move(state)} : DeviceKernel();
}

/// Returns the type in which one_hot.comp reads indices of the given type; undefined if it does not support them.
DType index_type(DType given) {
  switch (given) {
    case DType::int64:
    case DType::float32: return given;
    case DType::int32:
    case DType::int16:
    case DType::int8:
    case DType::uint16:
    case DType::uint8: return DType::int32;
    case DType::float16:
    case DType::bfloat16: return DType::float32;
    default: return DType::undefined;
  }
}

/// uint32 and uint64 are added and multiplied as int32 and int64, which gives the same bits.
DType summed_type(DType dtype) { return dtype == DType::uint32 ? DType::int32 : dtype == DType::uint64 ? DType::int64 : dtype; }

DeviceKernel find_one_hot(const Graph& graph, const Node& node, std::shared_ptr<PlacingState> state) {
  static const KernelDef one_hot = kernel<OneHot>("gpu");
  const DType values = graph.type(node.inputs[2]).dtype;
  state->index = index_type(graph.type(node.inputs[0]).dtype);
  if (!ops::has_plain_bytes(values) || state->index == DType::undefined) return {};
  const int64_t bytes = ops::element_bytes(values), word = std::min<int64_t>(bytes, 4);
  const uint32_t index[] = {state->index == DType::int32 ? 0U : state->index == DType::int64 ? 1U : 2U};
  state->words = bytes / word;
  state->shader = find_moving_shader("one_hot", static_cast<size_t>(word), index);
  return with(one_hot, std::move(state));
}

}  // namespace

DeviceKernel find_placing(const Graph& graph, const Node& node) {
  static const KernelDef cumulative = kernel<Cumulative>("gpu"), trilu = kernel<Trilu>("gpu"), wide = kernel<WideFunction>("gpu");
  if (!node.domain.empty()) return {};
  const DType dtype = graph.type(node.inputs[0]).dtype;
  auto state = std::make_shared<PlacingState>();
  if (node.op_type == "CumSum" || node.op_type == "CumProd") {
    const uint32_t product[] = {uint32_t{node.op_type == "CumProd"}};
    state->shader = find_shader("cumulative", summed_type(dtype), product);
    return with(cumulative, std::move(state));
  }
  if (node.op_type == "OneHot") return find_one_hot(graph, node, std::move(state));
  if (node.op_type == "Trilu" && ops::has_plain_bytes(dtype)) {
    const int64_t bytes = ops::element_bytes(dtype), word = std::min<int64_t>(bytes, 4);
    state->words = bytes / word;
    state->shader = find_moving_shader("trilu", static_cast<size_t>(word));
    return with(trilu, std::move(state));
  }
  const auto* const function = std::find(std::begin(kWideFunctions), std::end(kWideFunctions), node.op_type);
  if (dtype != DType::float64 || function == std::end(kWideFunctions)) return {};
  const uint32_t code[] = {static_cast<uint32_t>(function - std::begin(kWideFunctions))};
  state->shader = find_shader("unary", DType::float64, code);
  return with(wide, std::move(state));
}

}  // namespace treadle::gpu
