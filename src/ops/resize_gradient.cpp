// The gradient of Resize.
#include <fmt/format.h>

#include "graph/infer.h"
#include "ops/gradients.h"
#include "treadle/error.h"

namespace treadle::ops {

namespace gradients {

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

}  // namespace gradients

}  // namespace treadle::ops
