// Gradients of operators that move elements, of reductions and of matrix products.
#include <fmt/format.h>

#include <algorithm>

#include "graph/infer.h"
#include "ops/gradients.h"
#include "treadle/error.h"

namespace treadle::ops::gradients {
namespace {

/// A reduction's output, or its gradient, as if it had kept its axes.
ValueId with_reduced_axes(GradientContext& g, ValueId y) {
  const ValueId x = g.input(0);
  if (g.attributes().get_int("keepdims", 1) != 0) return y;
  std::vector<int64_t> axes;
  if (g.input(1) != kNoValue) {
    const Tensor* constant = g.graph().constant_tensor(g.input(1));
    if (!constant) throw Error(ErrorCode::not_implemented, "the gradient of a reduction without kept axes needs constant axes");
    axes.assign(constant->data<int64_t>(), constant->data<int64_t>() + constant->num_elements());
  }
  if (axes.empty()) {
    if (g.attributes().get_int("noop_with_empty_axes", 0) != 0) return y;
    for (int axis = 0; axis < rank_of(g, x); ++axis) axes.push_back(axis);
  }
  if (std::any_of(axes.begin(), axes.end(), [](int64_t axis) { return axis < 0; }))
    for (int64_t& axis : axes) axis = normalise_axis(axis, rank_of(g, x));
  return g.op("Unsqueeze", {y, g.ints(std::move(axes))});
}
ValueId with_reduced_axes(GradientContext& g) { return with_reduced_axes(g, g.grad_output(0)); }

ValueId as_matrix(GradientContext& g, ValueId x, int64_t columns) { return g.op("Reshape", {x, g.ints({-1, columns})}); }

/// Swaps the last two axes.
ValueId transposed(GradientContext& g, ValueId x) {
  std::vector<int64_t> perm;
  for (int axis = 0; axis < rank_of(g, x); ++axis) perm.push_back(axis);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return g.transpose(x, std::move(perm));
}

/// The whole of an operand of Gemm's gradient: alpha op(A) op(B).
ValueId product(GradientContext& g, ValueId a, bool trans_a, ValueId b, bool trans_b, float alpha = 1) {
  return g.op("Gemm", {a, b}, {{"alpha", alpha}, {"transA", int64_t{trans_a}}, {"transB", int64_t{trans_b}}});
}

}  // namespace

Result reshape(GradientContext& g) { return {g.reshape_like(g.grad_output(0), g.input(0))}; }

Result transpose(GradientContext& g) {
  const std::vector<int64_t>& perm = g.attributes().get_ints("perm");
  if (perm.empty()) return {g.op("Transpose", {g.grad_output(0)})};
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  return {g.transpose(g.grad_output(0), std::move(inverse))};
}

Result concat(GradientContext& g) {
  const int rank = rank_of(g, g.output(0));
  const int64_t axis = normalise_axis(g.attributes().get_int("axis"), rank);
  const auto count = static_cast<size_t>(g.node().num_formal_inputs);
  if (count == 1) return {g.grad_output(0)};
  std::vector<ValueId> extents;
  for (size_t i = 0; i < count; ++i) extents.push_back(g.op("Shape", {g.input(i)}, {{"start", axis}, {"end", axis + 1}}));
  const ValueId sizes = g.op("Concat", std::move(extents), {{"axis", int64_t{0}}});
  return g.op_n("Split", {g.grad_output(0), sizes}, static_cast<int>(count), {{"axis", axis}});
}

Result split(GradientContext& g) {
  std::vector<ValueId> parts;
  for (size_t i = 0; i < g.node().outputs.size(); ++i)
    parts.push_back(g.grad_output(i) != kNoValue ? g.grad_output(i) : zeros_like(g, g.output(i)));
  return {g.op("Concat", std::move(parts), {{"axis", g.attributes().get_int("axis", 0)}})};
}

Result slice(GradientContext& g) {
  std::vector<ValueId> inputs{g.grad_output(0), g.shape_of(g.input(0))};
  for (size_t i = 1; i < 5; ++i) inputs.push_back(g.input(i));
  while (inputs.back() == kNoValue) inputs.pop_back();
  return {g.op("SliceGrad", std::move(inputs), {}, "treadle")};
}

Result gather(GradientContext& g) {
  return {
      g.op("GatherGrad", {g.grad_output(0), g.input(1), g.shape_of(g.input(0))}, {{"axis", g.attributes().get_int("axis", 0)}}, "treadle")};
}

Result expand(GradientContext& g) { return {g.unbroadcast(g.grad_output(0), g.input(0))}; }

Result reduce_sum(GradientContext& g) { return {expand_like(g, with_reduced_axes(g), g.input(0))}; }

Result reduce_mean(GradientContext& g) {
  const ValueId count = elements_per_element(g, g.input(0), g.output(0));
  return {expand_like(g, g.div(with_reduced_axes(g), count), g.input(0))};
}

Result reduce_sum_square(GradientContext& g) {
  const ValueId x = g.input(0);
  return {g.mul(g.mul(x, g.scalar(2, x)), with_reduced_axes(g))};
}
Result reduce_l1(GradientContext& g) { return {g.mul(g.op("Sign", {g.input(0)}), with_reduced_axes(g))}; }
// x / y; 0 where all of x are.
Result reduce_l2(GradientContext& g) {
  const ValueId y = g.output(0), none = g.op("Equal", {y, g.scalar(0, y)});
  const ValueId factor = g.op("Where", {none, g.scalar(0, y), g.div(g.grad_output(0), g.op("Where", {none, g.scalar(1, y), y}))});
  return {g.mul(g.input(0), with_reduced_axes(g, factor))};
}
Result reduce_log_sum(GradientContext& g) {
  return {expand_like(g, with_reduced_axes(g, g.div(g.grad_output(0), g.op("Exp", {g.output(0)}))), g.input(0))};
}
Result reduce_log_sum_exp(GradientContext& g) {
  return {g.mul(g.op("Exp", {g.sub(g.input(0), with_reduced_axes(g, g.output(0)))}), with_reduced_axes(g))};
}
// Elements that are equally large share.
Result reduce_extremum(GradientContext& g) {
  const ValueId x = g.input(0);
  const ValueId taken =
      g.op("Cast", {g.op("Equal", {x, with_reduced_axes(g, g.output(0))})}, {{"to", static_cast<int64_t>(g.type(x).dtype)}});
  std::vector<ValueId> inputs{taken};
  if (g.input(1) != kNoValue) inputs.push_back(g.input(1));
  const ValueId sharing = g.op("ReduceSum", std::move(inputs),
                               {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", g.attributes().get_int("noop_with_empty_axes", 0)}});
  return {g.mul(taken, g.div(with_reduced_axes(g), sharing))};
}

// What was padded is cut off, and what was cut off gets zeros.
Result pad(GradientContext& g) {
  if (g.attributes().get_string("mode", "constant") != "constant")
    throw Error(ErrorCode::not_implemented, "only a Pad with a constant has a gradient");
  std::vector<ValueId> inputs{g.grad_output(0), g.neg(g.input(1))};
  if (g.input(3) != kNoValue) inputs.insert(inputs.end(), {kNoValue, g.input(3)});
  return {g.op("Pad", std::move(inputs))};
}

// Every axis as two, the repeats and what was repeated.
Result tile(GradientContext& g) {
  const int rank = rank_of(g, g.input(0));
  std::vector<int64_t> repeats;
  for (int axis = 0; axis < rank; ++axis) repeats.push_back(2 * axis);
  if (rank == 0) return {g.grad_output(0)};
  auto as_column = [&](ValueId v) { return g.op("Unsqueeze", {v, g.ints({1})}); };
  const ValueId pairs = g.op("Concat", {as_column(g.input(1)), as_column(g.shape_of(g.input(0)))}, {{"axis", int64_t{1}}});
  const ValueId split = g.op("Reshape", {g.grad_output(0), g.op("Reshape", {pairs, g.ints({-1})})}, {{"allowzero", int64_t{1}}});
  return {g.reduce_sum(split, std::move(repeats), /*keepdims=*/false)};
}

// Along each axis a resize is a product with a matrix, which is what it makes of the identity.
Result resize(GradientContext& g) {
  const ValueId x = g.input(0), scales = g.input(2);
  if (g.attributes().get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize" ||
      g.attributes().get_string("keep_aspect_ratio_policy", "stretch") != "stretch")
    throw Error(ErrorCode::not_implemented, "a Resize with tf_crop_and_resize, or one that keeps the aspect ratio, has no gradient");
  // Copies, here and of the shapes: adding nodes moves the graph's values.
  std::vector<float> factors;
  if (scales != kNoValue) {
    const Tensor* constant = g.graph().constant_tensor(scales);
    if (!constant) throw Error(ErrorCode::not_implemented, "the gradient of a Resize needs constant scales");
    factors.assign(constant->data<float>(), constant->data<float>() + constant->num_elements());
  }
  const int rank = rank_of(g, x);
  std::vector<int64_t> axes = g.attributes().get_ints("axes");
  if (axes.empty())
    for (int axis = 0; axis < rank; ++axis) axes.push_back(axis);
  Attributes attributes = g.attributes();
  attributes.set("axes", std::vector<int64_t>{0, 1});
  const SymbolicShape in = *g.type(x).shape, out = *g.type(g.output(0)).shape;
  const DType dtype = g.type(x).dtype;
  ValueId dx = g.grad_output(0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<int>(normalise_axis(axes[i], rank, "axes"));
    const Dim from = in[static_cast<size_t>(axis)], to = out[static_cast<size_t>(axis)];
    if (from == to && (factors.empty() || factors[i] == 1)) continue;
    if (!from.is_const() || !to.is_const())
      throw Error(ErrorCode::not_implemented, fmt::format("the gradient of a Resize needs the extents of axis {}", axis));
    const ValueId square = g.op("ConstantOfShape", {g.ints({from.value(), from.value()})});
    const ValueId identity = g.op("EyeLike", {square}, {{"dtype", static_cast<int64_t>(dtype)}});
    std::vector<ValueId> inputs{identity, kNoValue, kNoValue, g.ints({to.value(), from.value()})};
    if (!factors.empty()) inputs = {identity, kNoValue, g.constant(Tensor::vector<float>(std::vector<float>{factors[i], 1}))};
    const ValueId matrix = g.op("Resize", std::move(inputs), attributes);  // extent of dY x extent of dX
    if (axis == rank - 1) {
      dx = g.op("MatMul", {dx, matrix});
    } else if (axis == rank - 2) {
      dx = g.op("MatMul", {g.transpose(matrix, {1, 0}), dx});
    } else {
      std::vector<int64_t> swapped;
      for (int a = 0; a < rank; ++a) swapped.push_back(a);
      std::swap(swapped[static_cast<size_t>(axis)], swapped.back());
      dx = g.transpose(g.op("MatMul", {g.transpose(dx, swapped), matrix}), swapped);
    }
  }
  return {dx};
}

Result trilu(GradientContext& g) {
  std::vector<ValueId> inputs{g.grad_output(0)};
  if (g.input(1) != kNoValue) inputs.push_back(g.input(1));
  return {g.op("Trilu", std::move(inputs), {{"upper", g.attributes().get_int("upper", 1)}})};
}

Result gather_elements(GradientContext& g) {
  return {g.op("ScatterElements", {zeros_like(g, g.input(0)), g.input(1), g.grad_output(0)},
               {{"axis", g.attributes().get_int("axis", 0)}, {"reduction", std::string("add")}})};
}
Result gather_nd(GradientContext& g) {
  if (g.attributes().get_int("batch_dims", 0) != 0)
    throw Error(ErrorCode::not_implemented, "only a GatherND without batch_dims has a gradient");
  return {g.op("ScatterND", {zeros_like(g, g.input(0)), g.input(1), g.grad_output(0)}, {{"reduction", std::string("add")}})};
}

namespace {

// What the updates replaced had no say in the output; where they were added, both had.
Result scatter(GradientContext& g, std::string_view scatter, std::string_view gather, const Attributes& attributes) {
  const std::string_view reduction = g.attributes().get_string("reduction", "none");
  if (reduction != "none" && reduction != "add")
    throw Error(ErrorCode::not_implemented, fmt::format("{} with reduction = \"{}\" has no gradient", scatter, reduction));
  const ValueId dy = g.grad_output(0);
  const ValueId data = reduction == "add" ? dy : g.op(scatter, {dy, g.input(1), zeros_like(g, g.input(2))}, attributes);
  return {data, kNoValue, g.op(gather, {dy, g.input(1)}, attributes)};
}

}  // namespace

Result scatter_elements(GradientContext& g) {
  return scatter(g, "ScatterElements", "GatherElements", {{"axis", g.attributes().get_int("axis", 0)}});
}
Result scatter_nd(GradientContext& g) { return scatter(g, "ScatterND", "GatherND", {}); }

// dA = dY B^T, dB = A^T dY, with vectors as matrices of one row or column, and summed over what was broadcast.
Result matmul(GradientContext& g) {
  ValueId a = g.input(0), b = g.input(1), dy = g.grad_output(0);
  const int rank_a = rank_of(g, a), rank_b = rank_of(g, b);
  if (rank_a >= 2 && rank_b == 2) {
    // One matrix B: the batch of A is so many more rows.
    const Dim depth = g.type(a).shape->back(), columns = g.type(b).shape->back();
    if (rank_a == 2) return {product(g, dy, false, b, true), product(g, a, true, dy, false)};
    if (depth.is_const() && columns.is_const() && depth.value() > 0 && columns.value() > 0) {
      const ValueId rows = as_matrix(g, dy, columns.value());
      return {g.reshape_like(product(g, rows, false, b, true), a), product(g, as_matrix(g, a, depth.value()), true, rows, false)};
    }
  }
  if (rank_b == 1) b = g.op("Unsqueeze", {b, g.ints({1})}), dy = g.op("Unsqueeze", {dy, g.ints({-1})});
  if (rank_a == 1) a = g.op("Unsqueeze", {a, g.ints({0})}), dy = g.op("Unsqueeze", {dy, g.ints({-2})});
  ValueId da = g.unbroadcast(g.op("MatMul", {dy, transposed(g, b)}), a), db = g.unbroadcast(g.op("MatMul", {transposed(g, a), dy}), b);
  if (rank_a == 1) da = g.reshape_like(da, g.input(0));
  if (rank_b == 1) db = g.reshape_like(db, g.input(1));
  return {da, db};
}

// Y = alpha op(A) op(B) + beta C
Result gemm(GradientContext& g) {
  const ValueId a = g.input(0), b = g.input(1), c = g.input(2), dy = g.grad_output(0);
  const bool trans_a = g.attributes().get_int("transA") != 0, trans_b = g.attributes().get_int("transB") != 0;
  const float alpha = g.attributes().get_float("alpha", 1), beta = g.attributes().get_float("beta", 1);
  Result result{trans_a ? product(g, b, trans_b, dy, true, alpha) : product(g, dy, false, b, !trans_b, alpha),
                trans_b ? product(g, dy, true, a, trans_a, alpha) : product(g, a, !trans_a, dy, false, alpha)};
  if (c != kNoValue) {
    const ValueId dc = g.unbroadcast(dy, c);
    result.push_back(beta == 1 ? dc : g.mul(dc, g.scalar(static_cast<double>(beta), dc)));
  }
  return result;
}

}  // namespace treadle::ops::gradients
