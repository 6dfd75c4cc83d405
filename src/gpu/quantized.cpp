// Computes products and convolutions of 8-bit integers, and DynamicQuantizeLinear.
#include <algorithm>

#include "gpu/batches.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/quantization/integer_product.h"
#include "ops/widen.h"

namespace treadle::gpu {
namespace {

using ops::IntegerPlaces;
using ops::QuantizationLines;

constexpr int64_t kByteTile = 64;  // number of rows, and of columns, that a work group computes

int64_t byte_tiles(int64_t extent) { return (extent + kByteTile - 1) / kByteTile; }

/// Indices of the inputs of QuantizedMatMul, whose result is floats.
constexpr IntegerPlaces kToFloat{.x = 0, .x_zero = 2, .w = 3, .w_zero = 5, .x_scale = 1, .w_scale = 4};

struct IntegerState final : PackedState {
  const IntegerPlaces* at = nullptr;
  const vulkan::Shader *sums = nullptr, *direct = nullptr;  ///< `direct`: for convolutions with few channels per group
  const vulkan::Shader* requantize = nullptr;               ///< null if the sums themselves are the result
};

// These flags have the same values as in product_bytes.comp and requantize.comp.
enum ZeroFlag : uint32_t { has_x_zero = 1, has_w_zero = 2, x_zero_per_line = 4, w_zero_per_line = 8 };
enum ScaleFlag : uint32_t { has_sum_bias = 1, x_per_row = 2, w_per_row = 4, w_per_column = 8 };

uint32_t zero_flags(const QuantizationLines& x, const QuantizationLines& w) {
  return (x.present ? has_x_zero : 0U) | (w.present ? has_w_zero : 0U) | (x.per_line ? x_zero_per_line : 0U) |
         (w.per_line ? w_zero_per_line : 0U);
}

/// Converts int32 sums to codes or floats. The sums are in scratch memory, unless they themselves are the result.
struct Requantizing {
  int64_t rows = 1, columns = 1, count = 0;  // extents of each matrix; number of all sums
  uint32_t flags = 0;

  /// @param plan  the product or convolution  @param of_w  the flag for scales of W's lines
  template <typename Plan>
  static Requantizing bind(BindContext& c, const Plan& plan, int64_t rows, int64_t columns, ScaleFlag of_w) {
    const auto& state = c.packed<IntegerState>();
    count32(c.num_elements(state.at->x)), count32(c.num_elements(state.at->w));
    Requantizing k{rows, columns, count32(c.output_shape(0).num_elements())};
    if (!state.requantize) return k;
    const ops::IntegerScales scales = plan.scales(c, *state.at);
    k.flags = (scales.x.per_line ? x_per_row : 0U) | (scales.w.per_line ? of_w : 0U);
    c.request_scratch(static_cast<size_t>(k.count) * sizeof(int32_t));
    return k;
  }
  int32_t* sums(RunContext& c) const { return c.packed<IntegerState>().requantize ? c.scratch<int32_t>() : c.out<int32_t>(0); }
  void run(RunContext& c) const {
    const auto& state = c.packed<IntegerState>();
    if (!state.requantize || count == 0) return;
    const IntegerPlaces& at = *state.at;
    Push push;
    const auto operand = [&c](int input) { return input < 0 ? nullptr : c.in<void>(input); };
    push.pointer(c.out<void>(0)).pointer(sums(c)).pointer(operand(at.bias));
    for (const int input : {at.x_scale, at.w_scale, at.y_scale, at.y_zero}) push.pointer(operand(input));
    push_sizes(push, {count, rows, columns});
    push.word(flags | (operand(at.bias) ? has_sum_bias : 0U));
    stream().dispatch(*state.requantize, push.bytes(), groups_over(count32(count)));
  }
};

struct ByteProduct : ops::IntegerProductPlan {
  Requantizing result;

  static ByteProduct bind(BindContext& c) {
    const auto plan = IntegerProductPlan::bind(c, *c.packed<IntegerState>().at);
    return {plan, Requantizing::bind(c, plan, plan.rows, plan.columns, w_per_column)};
  }
  void run(RunContext& c) const {
    if (result.count == 0) return;
    for_each_batch(product.shape, product.batch, [&](const kernels::BatchOffsets& at, int64_t matrices, int64_t a_step, int64_t b_step) {
      dispatch(c, at, matrices, a_step, b_step);
    });
    result.run(c);
  }

 private:
  void dispatch(RunContext& c, const kernels::BatchOffsets& at, int64_t matrices, int64_t a_step, int64_t b_step) const {
    const auto& state = c.packed<IntegerState>();
    const kernels::GemmShape& s = product.shape;
    // If matrices have zero points of their own, they are stored one matrix after the other.
    const int64_t a_zero = a_zeros.per_matrix ? s.M : 0, b_zero = b_zeros.per_matrix ? s.N : 0, terms = std::max<int64_t>(s.K, 1);
    const auto zeros = [&](int input, int64_t offset) { return c.in<uint8_t>(input) ? c.in<uint8_t>(input) + offset : nullptr; };
    Push push;
    push.pointer(result.sums(c) + at.c).pointer(c.in<uint8_t>(state.at->x) + at.a).pointer(c.in<uint8_t>(state.at->w) + at.b);
    push.pointer(zeros(state.at->x_zero, a_zero > 0 ? at.a / (s.M * terms) * a_zero : 0));
    push.pointer(zeros(state.at->w_zero, b_zero > 0 ? at.b / (terms * s.N) * b_zero : 0)).word(zero_flags(a_zeros, b_zeros));
    push_sizes(push, {s.M, s.N, s.K, a_step, b_step, a_step > 0 ? a_zero : 0, b_step > 0 ? b_zero : 0});
    std::array<uint32_t, 3> groups = groups_for(byte_tiles(s.M) * byte_tiles(s.N));
    groups[2] = static_cast<uint32_t>(matrices);
    stream().dispatch(*state.sums, push.bytes(), groups);
  }
};

struct ByteConvolution : ops::IntegerConvolutionPlan {
  Requantizing result;

  static ByteConvolution bind(BindContext& c) {
    const auto& state = c.packed<IntegerState>();
    const auto plan = IntegerConvolutionPlan::bind(c, *state.at, state.requantize ? ops::kConvQLinear : ops::kConvInteger);
    return {plan, Requantizing::bind(c, plan, plan.params.M, plan.params.window.out_size(), w_per_row)};
  }
  void run(RunContext& c) const {
    if (result.count == 0) return;
    for_each_images(params, [&](int64_t first, int64_t images) { dispatch(c, first, images); });
    result.run(c);
  }

 private:
  // Dispatches the work for `images` images, beginning with image `first`.
  void dispatch(RunContext& c, int64_t first, int64_t images) const {
    const auto& state = c.packed<IntegerState>();
    const kernels::Window& w = params.window;
    const int64_t of_group = params.M / params.group, out = w.out_size();
    Push push;
    push.pointer(result.sums(c) + first * params.M * out).pointer(c.in<uint8_t>(state.at->x) + first * params.C * w.in_size());
    push.pointer(c.in<void>(state.at->w)).pointer(c.in<void>(state.at->x_zero)).pointer(c.in<void>(state.at->w_zero));
    push.word(zero_flags(x_zeros, w_zeros));
    push_sizes(push, {of_group, params.C / params.group * w.kernel_size(), params.group});
    push_window(push, {&w.in, &w.out, &w.kernel, &w.stride, &w.dilation, &w.pad_begin});
    const bool is_direct = of_group < 8;
    std::array<uint32_t, 3> groups = is_direct ? groups_over(count32(of_group * out)) : groups_for(byte_tiles(of_group) * byte_tiles(out));
    groups[2] = static_cast<uint32_t>(images * params.group);
    stream().dispatch(is_direct ? *state.direct : *state.sums, push.bytes(), groups);
  }
};

struct DynamicQuantization {
  int64_t count, parts;

  static DynamicQuantization bind(BindContext& c) {
    constexpr int64_t kMostParts = 256, kOfPart = 4096;
    const int64_t count = count32(c.num_elements(0)), parts = std::clamp<int64_t>((count + kOfPart - 1) / kOfPart, 1, kMostParts);
    c.request_scratch(static_cast<size_t>(parts) * 2 * sizeof(float));
    return {count, parts};
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<IntegerState>();
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.out<void>(1)).pointer(c.out<void>(2)).pointer(c.in<void>(0)).pointer(c.scratch<void>());
    push.word(static_cast<uint32_t>(count)).word(static_cast<uint32_t>(parts));
    for (const int output : {1, 2}) push.word(uint32_t{c.out<void>(output) != nullptr});
    stream().dispatch(*state.sums, push.bytes(), groups_for(parts));
    stream().dispatch(*state.requantize, push.bytes(), groups_over(std::max(count32(count), 1U)));  // even an empty x has a scale
  }
};

bool is_byte(DType dtype) { return dtype == DType::int8 || dtype == DType::uint8; }

/// Returns true if the operands are 8-bit integers, and the scales are float32 and shared by all matrices.
bool takes_operands(const Graph& graph, const Node& node, const IntegerPlaces& at) {
  const auto type_of = [&](int input) -> const Type& { return graph.type(node.inputs[static_cast<size_t>(input)]); };
  for (const int input : {at.x_scale, at.w_scale, at.y_scale})
    if (input >= 0 && (type_of(input).dtype != DType::float32 || type_of(input).shape->size() > 2)) return false;
  return is_byte(type_of(at.x).dtype) && is_byte(type_of(at.w).dtype) && (at.y_scale < 0 || is_byte(graph.type(node.outputs[0]).dtype));
}

DeviceKernel find_dynamic_quantization(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<DynamicQuantization>("gpu");
  if (graph.type(node.inputs[0]).dtype != DType::float32) return {};
  auto state = std::make_shared<IntegerState>();
  const uint32_t ranges[] = {1}, codes[] = {0};
  state->sums = find_moving_shader("dynamic_quantize", 1, ranges);
  state->requantize = find_moving_shader("dynamic_quantize", 1, codes);
  return {&kernel, std::move(state)};
}

}  // namespace

DeviceKernel find_quantized(const Graph& graph, const Node& node) {
  static const KernelDef product = kernel<ByteProduct>("gpu"), convolution = kernel<ByteConvolution>("gpu");
  const bool to_float = node.is("QuantizedMatMul", "treadle");
  if (!node.domain.empty() && !to_float) return {};
  if (node.op_type == "DynamicQuantizeLinear") return find_dynamic_quantization(graph, node);
  const bool scales = node.op_type.starts_with("QLinear"), convolves = node.op_type == "ConvInteger" || node.op_type == "QLinearConv";
  if (!convolves && !to_float && node.op_type != "MatMulInteger" && node.op_type != "QLinearMatMul") return {};
  auto state = std::make_shared<IntegerState>();
  state->at = to_float ? &kToFloat : scales ? &ops::kQLinear : &ops::kInteger;
  if (!takes_operands(graph, node, *state->at)) return {};
  const auto is_signed = [&](ValueId id) { return uint32_t{graph.type(id).dtype == DType::int8}; };
  const uint32_t operands[] = {is_signed(node.inputs[static_cast<size_t>(state->at->x)]),
                               is_signed(node.inputs[static_cast<size_t>(state->at->w)])};
  const uint32_t result[] = {is_signed(node.outputs[0]), uint32_t{to_float}};
  state->sums = find_moving_shader(convolves ? "convolution_bytes" : "product_bytes", 1, operands);
  state->direct = find_moving_shader("convolution_bytes_direct", 1, operands);
  if (scales || to_float) state->requantize = find_moving_shader("requantize", 1, result);
  return {convolves ? &convolution : &product, std::move(state)};
}

}  // namespace treadle::gpu
