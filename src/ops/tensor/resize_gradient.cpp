// The gradient of Resize.
#include <fmt/format.h>

#include "graph/infer.h"
#include "ops/gradients.h"
#include "treadle/error.h"

namespace treadle::ops {

namespace gradients {

// Roi and scales are taken as constants. Along each axis a resize is a product with a matrix, which is what it makes of the identity.
Result resize(GradientContext& g) {
  const ValueId x = g.input(0), roi = g.input(1), scales = g.input(2), y = g.output(0);
  const bool crops = g.attributes().get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize";
  if (g.attributes().get_string("keep_aspect_ratio_policy", "stretch") != "stretch")
    throw Error(ErrorCode::not_implemented, "a Resize that keeps the aspect ratio has no gradient");
  // Copies, here and of the shapes: adding nodes moves the graph's values.
  std::vector<float> factors;
  if (const Tensor* constant = scales == kNoValue ? nullptr : g.graph().constant_tensor(scales))
    factors.assign(constant->data<float>(), constant->data<float>() + constant->num_elements());
  const bool by_scales = scales != kNoValue && (factors.empty() ? g.input(3) == kNoValue : true);
  const int rank = rank_of(g, x);
  std::vector<int64_t> axes = g.attributes().get_ints("axes");
  if (axes.empty())
    for (int axis = 0; axis < rank; ++axis) axes.push_back(axis);
  Attributes attributes = g.attributes();
  attributes.set("axes", std::vector<int64_t>{0, 1});
  attributes.set("extrapolation_value", 0.0F);
  const SymbolicShape in = *g.type(x).shape, out = *g.type(y).shape;
  const auto dtype = static_cast<int64_t>(g.type(x).dtype);
  const auto count = static_cast<int64_t>(axes.size());
  auto joined = [&](std::vector<ValueId> parts) { return g.op("Concat", std::move(parts), {{"axis", int64_t{0}}}); };
  auto element = [&](ValueId vector, int64_t i) { return g.op("Gather", {vector, g.ints({i})}); };
  ValueId dx = g.grad_output(0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<int>(normalise_axis(axes[i], rank, "axes"));
    const Dim from = in[static_cast<size_t>(axis)], to = out[static_cast<size_t>(axis)];
    if (from == to && !crops && (!by_scales || (!factors.empty() && factors[i] == 1))) continue;
    const ValueId rows = element(g.shape_of(x), axis);
    const ValueId identity = g.op("EyeLike", {g.op("ConstantOfShape", {joined({rows, rows})})}, {{"dtype", dtype}});
    std::vector<ValueId> inputs{identity, kNoValue, kNoValue, kNoValue};
    if (crops && roi != kNoValue) {
      const ValueId unit = g.op("CastLike", {g.constant(Tensor::vector<float>(std::vector<float>{0, 1})), roi});
      inputs[1] = joined(
          {element(roi, static_cast<int64_t>(i)), element(unit, 0), element(roi, count + static_cast<int64_t>(i)), element(unit, 1)});
    }
    if (by_scales)
      inputs[2] = joined({element(scales, static_cast<int64_t>(i)), g.constant(Tensor::vector<float>(std::vector<float>{1}))}),
      inputs.pop_back();
    else
      inputs[3] = joined({element(g.shape_of(y), axis), rows});
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

}  // namespace gradients

}  // namespace treadle::ops
