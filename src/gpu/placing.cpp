// Computes CumSum, CumProd, OneHot, Trilu, EyeLike, ReverseSequence, BitCast, and functions of float64.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>

#include "core/values/dispatch.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "graph/scalar_function.h"
#include "kernels/elementwise/chain.h"
#include "ops/math/axis_rows.h"
#include "ops/tensor/index_plans.h"
#include "ops/tensor/movement.h"

namespace treadle::gpu {
namespace {

struct PlacingState final : FaultState {
  const vulkan::Shader* shader = nullptr;
  int64_t words = 1;               // words per element, for elements that are only copied
  DType index = DType::undefined;  // dtype in which OneHot reads its indices
  uint32_t one[2] = {};            // the last two words of the number 1, for EyeLike
  FunctionParameters parameters;   // parameters of the float64 function
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
    push_sizes(push, {rows.outer, rows.length, rows.inner});
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
    push_sizes(push, {count, state.words, plan.depth, plan.inner});
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
    push_sizes(push, {count, state.words, plan.rows, plan.columns, std::clamp(plan.k, -plan.rows, plan.columns)});
    push.word(uint32_t{plan.upper});
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(count)));
  }
};

struct EyeLike {
  int64_t count, columns, k;

  static EyeLike bind(BindContext& c) {
    const Shape& y = c.output_shape(0);
    return {count32(y.num_elements() * c.packed<PlacingState>().words), y[1], std::clamp(c.get_int("k"), -y[0], y[1])};
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<PlacingState>();
    Push push;
    push.pointer(c.out<void>(0));
    push_sizes(push, {count, state.words, columns, k, state.one[0], state.one[1]});
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(count)));
  }
};

struct ReverseSequence : ops::ReverseSequencePlan {
  int64_t count;

  static ReverseSequence bind(BindContext& c) {
    const int64_t words = c.packed<PlacingState>().words;
    ReverseSequence k{ReverseSequencePlan::bind(c), count32(c.num_elements(0) * words)};
    k.time_stride *= words, k.batch_stride *= words;
    return k;
  }
  void run(RunContext& c) const {
    if (count == 0) return;
    const auto& state = c.packed<PlacingState>();
    const auto site = state.fault(fmt::format("an element of sequence_lens is outside of [0, {}]", time));
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(1)).fault(site);
    push_sizes(push, {count, time, time_stride, batch, batch_stride, site.number});
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(count)));
  }
};

/// Computes BitCast. The output may be in the memory of the input, so that nothing is copied.
struct Bits {
  size_t bytes;

  static Bits bind(BindContext& c) {
    return {static_cast<size_t>((c.num_elements(0) * static_cast<int64_t>(bits_of(c.dtype(0))) + 7) / 8)};
  }
  void run(RunContext& c) const {
    if (c.in<void>(0) != c.out<void>(0)) stream().copy(c.out<void>(0), c.in<void>(0), bytes, CopyKind::device_to_device);
  }
};

struct WideFunction {
  int64_t count;

  static WideFunction bind(BindContext& c) { return {count32(c.num_elements(0))}; }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).word(static_cast<uint32_t>(count));
    const FunctionParameters& parameters = c.packed<PlacingState>().parameters;
    push.word(parameters.a).word(parameters.b);
    stream().dispatch(*c.packed<PlacingState>().shader, push.bytes(), groups_over(count32(count)));
  }
};

/// Returns the number that a function has in unary.comp: that of kernels::Unary, or one from 100 on; nullopt if the shader lacks the
/// function.
std::optional<uint32_t> wide_function(const ScalarFunction& function) {
  using kernels::ChainOp, kernels::Unary;
  switch (function.step) {
    case ChainOp::floor: return 100;
    case ChainOp::ceil: return 101;
    case ChainOp::round: return 102;
    case ChainOp::unary: break;
    default: return std::nullopt;
  }
  constexpr Unary kLacking[] = {Unary::none,  Unary::clip, Unary::scaled_tanh, Unary::affine, Unary::gelu_slope,
                                Unary::rsqrt, Unary::abs,  Unary::neg,         Unary::square, Unary::scaled_hard_swish};
  if (function.map || std::find(std::begin(kLacking), std::end(kLacking), function.code) != std::end(kLacking)) return std::nullopt;
  return static_cast<uint32_t>(function.code);
}

DeviceKernel with(const KernelDef& kernel, std::shared_ptr<PlacingState> state) {
  return state->shader ? DeviceKernel{&kernel, std::move(state)} : DeviceKernel();
}

/// Returns the dtype to which indices are converted for one_hot.comp; undefined if the shader does not support them.
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

/// Returns the dtype in which numbers are summed and multiplied. For uint32 and uint64, signed arithmetic gives the same bits.
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

/// Sets the shader that copies elements. @return false if elements do not occupy whole bytes
bool set_moving_shader(PlacingState& state, const std::string& file, DType dtype) {
  if (!ops::has_plain_bytes(dtype)) return false;
  const int64_t bytes = ops::element_bytes(dtype), word = std::min<int64_t>(bytes, 4);
  state.words = bytes / word;
  state.shader = find_moving_shader(file, static_cast<size_t>(word));
  return true;
}

DeviceKernel find_eye_like(DType dtype, std::shared_ptr<PlacingState> state) {
  static const KernelDef eye_like = kernel<EyeLike>("gpu");
  if (!set_moving_shader(*state, "eye", dtype)) return {};
  uint64_t one = 0;  // the bits of the number 1 in `dtype`
  visit_dtype<concat_t<NumericTypes, TypeList<bool>>>(dtype, [&]<typename T>() {
    const T number = static_cast<T>(1);
    std::memcpy(&one, &number, sizeof(T));
  });
  state->one[0] = static_cast<uint32_t>(one);
  state->one[1] = static_cast<uint32_t>(state->words == 2 ? one >> 32 : one);
  return {&eye_like, std::move(state)};
}

}  // namespace

DeviceKernel find_placing(const Graph& graph, const Node& node) {
  static const KernelDef cumulative = kernel<Cumulative>("gpu"), trilu = kernel<Trilu>("gpu"), wide = kernel<WideFunction>("gpu"),
                         reverse = kernel<ReverseSequence>("gpu"), bits = kernel<Bits>("gpu");
  if (!node.domain.empty()) return {};
  const DType dtype = graph.type(node.inputs[0]).dtype;
  auto state = std::make_shared<PlacingState>();
  if (node.op_type == "CumSum" || node.op_type == "CumProd") {
    const uint32_t product[] = {uint32_t{node.op_type == "CumProd"}};
    state->shader = find_shader("cumulative", summed_type(dtype), product);
    return with(cumulative, std::move(state));
  }
  if (node.op_type == "BitCast") return {&bits, std::move(state)};
  if (node.op_type == "OneHot") return find_one_hot(graph, node, std::move(state));
  state->node = describe(node);
  if (node.op_type == "Trilu" && set_moving_shader(*state, "trilu", dtype)) return with(trilu, std::move(state));
  if (node.op_type == "ReverseSequence" && set_moving_shader(*state, "reverse_sequence", dtype)) return with(reverse, std::move(state));
  if (node.op_type == "EyeLike") return find_eye_like(graph.type(node.outputs[0]).dtype, std::move(state));
  const ScalarFunction* const function = dtype == DType::float64 ? function_of(node) : nullptr;
  const std::optional<uint32_t> number = function ? wide_function(*function) : std::nullopt;
  const std::optional<FunctionParameters> parameters = number ? parameters_of(graph, node, *function) : std::nullopt;
  if (!parameters) return {};
  state->parameters = *parameters;
  const uint32_t code[] = {*number};
  state->shader = find_shader("unary", DType::float64, code);
  return with(wide, std::move(state));
}

}  // namespace treadle::gpu
