// Gradients of QuantizeLinear, DequantizeLinear and integer products. Rounding is treated as the identity (straight-through estimator). The
// gradient of a quantized value is a float.
#include "ops/quantization/quantize_gradient.h"

#include <fmt/format.h>

#include "graph/infer.h"
#include "treadle/error.h"

namespace treadle::ops::gradients {
namespace {

/// Returns a tensor with the scale of each element of `like`, by dequantizing ones.
ValueId scale_of_elements(GradientContext& g, ValueId like) {
  Attributes attributes;
  for (const char* name : {"axis", "block_size"})
    if (const Attribute* value = g.attributes().find(name)) attributes.set(name, *value);
  const ValueId one = g.op("Cast", {g.constant(Tensor::scalar(1.0F))}, {{"to", static_cast<int64_t>(DType::int8)}});
  return g.op("DequantizeLinear", {g.op("Expand", {one, g.shape_of(like)}), g.input(1)}, std::move(attributes));
}

/// Sums `flow` over each block of the axis. The last block may be shorter.
ValueId sum_of_blocks(GradientContext& g, ValueId flow, int axis) {
  const int rank = rank_of(g, flow);
  const int64_t size = g.attributes().get_int("block_size", 0);
  if (size < 1)
    throw Error(ErrorCode::not_implemented,
                fmt::format("scales are {} for {}, and there is no block_size", to_string(g.type(g.input(1))), to_string(g.type(flow))));
  auto part = [&](ValueId shape, int from, int to) { return g.op("Slice", {shape, g.ints({from}), g.ints({to})}); };
  const ValueId shape = g.shape_of(flow), blocks = part(g.shape_of(g.input(1)), axis, axis + 1);
  const ValueId missing = g.sub(g.mul(blocks, g.ints({size})), part(shape, axis, axis + 1));
  const auto zeros = [&](int count) { return g.ints(std::vector<int64_t>(static_cast<size_t>(count), 0)); };
  const ValueId pads = g.op("Concat", {zeros(rank + axis), missing, zeros(rank - 1 - axis)}, {{"axis", int64_t{0}}});
  const ValueId split = g.op("Concat", {part(shape, 0, axis), blocks, g.ints({size}), part(shape, axis + 1, rank)}, {{"axis", int64_t{0}}});
  return g.reduce_sum(g.op("Reshape", {g.op("Pad", {flow, pads}), split}), {axis + 1}, /*keepdims=*/false);
}

/// `flow` has a gradient per element. Sums those of the elements that share a scale, which gives the gradient of the scales.
ValueId into_scale(GradientContext& g, ValueId flow) {
  const ValueId scale = g.input(1);
  const Type type = g.type(scale);
  const int rank = rank_of(g, flow), scale_rank = rank_of(g, scale);
  ValueId sum = flow;
  if (type.is_static() && type.static_shape().num_elements() == 1) {
    sum = g.op("ReduceSum", {flow}, {{"keepdims", int64_t{0}}});
  } else {
    const int axis = normalize_axis(g.attributes().get_int("axis", 1), rank);
    std::vector<int64_t> others;
    for (int a = 0; a < rank; ++a)
      if (a != axis) others.push_back(a);
    if (scale_rank != 1 || g.attributes().get_int("block_size", 0) > 0)
      sum = sum_of_blocks(g, flow, axis);
    else if (!others.empty())  // an empty list of axes would mean all axes
      sum = g.reduce_sum(flow, std::move(others), /*keepdims=*/false);
  }
  if (g.type(sum).dtype != type.dtype) sum = g.op("Cast", {sum}, {{"to", static_cast<int64_t>(type.dtype)}});
  return g.reshape_like(sum, scale);
}

ValueId as_float32(GradientContext& g, ValueId value) { return g.op("Cast", {value}, {{"to", static_cast<int64_t>(DType::float32)}}); }

/// Returns quantized numbers minus their zero point. @param axes  axes of extent 1 to append to zero points that are a vector, one per row
ValueId less_zero(GradientContext& g, ValueId codes, ValueId zero, std::vector<int64_t> axes) {
  const ValueId x = as_float32(g, codes);
  if (zero == kNoValue) return x;
  const Type type = g.type(zero);
  if (type.is_static() && type.static_shape().num_elements() == 0) return x;
  ValueId subtrahend = as_float32(g, zero);
  if (type.has_rank() && type.rank() == 1 && !axes.empty()) subtrahend = g.op("Unsqueeze", {subtrahend, g.ints(std::move(axes))});
  return g.sub(x, subtrahend);
}

/// A quantized operand of QLinearMatMul or QLinearConv. `codes` are the codes minus the zero point; `numbers` is codes * scale.
struct Operand {
  size_t first;  // index of the input with the codes; scale and zero point follow
  ValueId codes, scale, numbers;

  Operand(GradientContext& g, size_t input, const std::vector<int64_t>& axes) : first(input) {
    codes = less_zero(g, g.input(first), g.input(first + 2), axes);
    scale = g.type(g.input(first + 1)).dtype == DType::float32 ? g.input(first + 1) : as_float32(g, g.input(first + 1));
    if (g.type(scale).has_rank() && g.type(scale).rank() == 1 && !axes.empty()) scale = g.op("Unsqueeze", {scale, g.ints(axes)});
    numbers = g.mul(codes, scale);
  }
  void flow_back(GradientContext& g, ValueId flow, Gradients& result) const {
    if (g.wants(first)) result[first] = g.mul(flow, scale);
    if (g.wants(first + 1)) result[first + 1] = g.reshape_like(g.unbroadcast(g.mul(flow, codes), scale), g.input(first + 1));
  }
};

/// Differentiates y = saturate(round(real / y_scale) + y_zero). Returns the gradient of `real`, and adds that of the scale to `result`.
/// Both are 0 where y is saturated.
ValueId through_rounding(GradientContext& g, ValueId real, Gradients& result) {
  ValueId scale = g.input(6);
  if (g.type(scale).dtype != DType::float32) scale = as_float32(g, scale);
  const ValueId steps = g.div(real, scale), distance = g.op("Abs", {g.sub(steps, less_zero(g, g.output(0), g.input(7), {}))});
  // Rounding moves a number by at most half a step. Slightly more is accepted, because `steps` itself has a rounding error.
  const ValueId inside = g.op("LessOrEqual", {distance, g.scalar(0.501, steps)});
  const ValueId flow = g.div(masked(g, inside, as_float32(g, g.grad_output(0))), scale);
  if (g.wants(6)) result[6] = g.reshape_like(g.unbroadcast(g.neg(g.mul(flow, steps)), scale), g.input(6));
  return flow;
}

/// Casts the gradients of 16-bit scales from float32 to the dtype of the scales.
Gradients narrowed_scales(GradientContext& g, Gradients result) {
  for (size_t i : {1, 4, 6})
    if (const DType dtype = g.type(g.input(i)).dtype; result[i] != kNoValue && dtype != DType::float32)
      result[i] = g.op("Cast", {result[i]}, {{"to", static_cast<int64_t>(dtype)}});
  return result;
}

/// Removes the gradients of inputs that have none: zero points, and constant codes.
Gradients of_codes(GradientContext& g, Gradients flows) {
  for (size_t i = 0; i < flows.size(); ++i)
    if (!g.wants(i)) flows[i] = kNoValue;
  return flows;
}

}  // namespace

// Differentiates Y = (A - a_zero) (B - b_zero). A vector of zero points has an element for each row of A or for each column of B.
Gradients matmul_integer(GradientContext& g) {
  const bool rows = rank_of(g, g.input(0)) > 1;
  const ValueId a = less_zero(g, g.input(0), g.input(2), rows ? std::vector<int64_t>{-1} : std::vector<int64_t>{}),
                b = less_zero(g, g.input(1), g.input(3), {});
  return of_codes(g, product(g, a, b, g.grad_output(0)));
}

// Differentiates ConvInteger. Its padding has the zero point as code, and so represents the number 0.
Gradients conv_integer(GradientContext& g) {
  std::vector<int64_t> axes;
  for (int axis = 1; axis < rank_of(g, g.input(1)); ++axis) axes.push_back(axis);
  const ValueId x = less_zero(g, g.input(0), g.input(2), {}), w = less_zero(g, g.input(1), g.input(3), std::move(axes));
  return of_codes(g, convolution(g, x, w, g.grad_output(0)));
}

// Differentiates QLinearMatMul as the product of the dequantized operands, whose result is then rounded.
Gradients qlinear_matmul(GradientContext& g) {
  const Operand a(g, 0, rank_of(g, g.input(0)) > 1 ? std::vector<int64_t>{-1} : std::vector<int64_t>{}), b(g, 3, {});
  Gradients result(8, kNoValue);
  const ValueId flow = through_rounding(g, g.op("MatMul", {a.numbers, b.numbers}), result);
  const Gradients factors = product(g, a.numbers, b.numbers, flow);
  a.flow_back(g, factors[0], result), b.flow_back(g, factors[1], result);
  return narrowed_scales(g, std::move(result));
}

// Differentiates QLinearConv. The bias has the scale x_scale * w_scale. It has no gradient, because its codes are constant.
Gradients qlinear_conv(GradientContext& g) {
  std::vector<int64_t> axes;
  for (int axis = 1; axis < rank_of(g, g.input(3)); ++axis) axes.push_back(axis);
  const Operand x(g, 0, {}), w(g, 3, axes);
  const Attributes attributes = g.attributes();
  std::vector<ValueId> inputs{x.numbers, w.numbers};
  ValueId codes = kNoValue, unit = kNoValue;
  if (g.input(8) != kNoValue) {
    codes = as_float32(g, g.input(8)), unit = g.mul(g.input(1), g.input(4));
    inputs.push_back(g.mul(codes, unit));
  }
  Gradients result(9, kNoValue);
  const ValueId flow = through_rounding(g, g.op("Conv", std::move(inputs), attributes), result);
  const Gradients parts = convolution(g, x.numbers, w.numbers, flow);
  x.flow_back(g, parts[0], result), w.flow_back(g, parts[1], result);
  if (codes == kNoValue) return result;
  std::vector<int64_t> others{0};
  for (int axis = 2; axis < rank_of(g, flow); ++axis) others.push_back(axis);
  const ValueId of_unit = g.mul(g.reduce_sum(flow, std::move(others), /*keepdims=*/false), codes);
  for (size_t i : {1, 4}) {
    if (result[i] == kNoValue) continue;
    const ValueId part = g.unbroadcast(g.mul(of_unit, g.input(5 - i)), g.input(i));
    result[i] = g.add(result[i], g.reshape_like(part, g.input(i)));
  }
  return result;
}

// The scale depends on x as well, and the codes depend on the scale. The two gradients through the scale nearly cancel, so both are
// omitted.
Gradients dynamic_quantize(GradientContext& g) {
  if (g.grad_output(0) == kNoValue) return {};
  return {g.div(g.grad_output(0), require_output(g, 1))};
}

// Differentiates y = (x - zero) scale.
Gradients dequantize(GradientContext& g) {
  const ValueId x = g.input(0), dy = g.grad_output(0);
  auto as_float = [&](ValueId value) {
    return g.type(value).dtype == g.type(dy).dtype ? value : g.op("Cast", {value}, {{"to", static_cast<int64_t>(g.type(dy).dtype)}});
  };
  const ValueId scales = as_float(scale_of_elements(g, x));
  Gradients result{g.mul(dy, scales), kNoValue};
  if (g.wants(1)) {
    const ValueId zero = g.op("Equal", {scales, g.scalar(0, scales)});
    const ValueId steps = g.div(as_float(g.output(0)), g.op("Where", {zero, g.scalar(1, scales), scales}));
    result[1] = into_scale(g, g.mul(dy, steps));
  }
  return result;
}

// Differentiates QuantizeLinear. Where x was only rounded (the result is within half a step of x), the gradient passes; where x was
// clipped, it is 0.
Gradients quantize(GradientContext& g) {
  const ValueId y = g.output(0);
  ValueId x = g.input(0), dy = g.grad_output(0);
  if (!is_float(g.type(x).dtype)) x = as_float32(g, x);
  const DType dtype = g.type(x).dtype;
  auto as_x = [&](ValueId value) {
    return g.type(value).dtype == dtype ? value : g.op("Cast", {value}, {{"to", static_cast<int64_t>(dtype)}});
  };
  const ValueId scales = as_x(scale_of_elements(g, x));
  dy = as_x(dy);
  if (is_integer(g.type(y).dtype)) {
    Attributes attributes;
    for (const char* name : {"axis", "block_size"})
      if (const Attribute* value = g.attributes().find(name)) attributes.set(name, *value);
    std::vector<ValueId> inputs{y, g.input(1)};
    if (g.input(2) != kNoValue) inputs.push_back(g.input(2));
    const ValueId distance = g.op("Abs", {g.sub(x, as_x(g.op("DequantizeLinear", std::move(inputs), std::move(attributes))))});
    // Rounding moves a number by at most half a step. Slightly more is accepted, because the distance itself has a rounding error.
    dy = masked(g, g.op("LessOrEqual", {distance, g.mul(scales, g.scalar(0.5001, x))}), dy);
  }
  Gradients result{g.div(dy, scales), kNoValue};
  if (g.wants(1)) result[1] = into_scale(g, g.neg(g.div(g.mul(result[0], x), scales)));
  return result;
}

}  // namespace treadle::ops::gradients
