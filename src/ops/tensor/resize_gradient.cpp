// Computes the gradient of Resize as matrix products.
#include <algorithm>
#include <numeric>
#include <utility>

#include "graph/infer.h"
#include "ops/gradients.h"
#include "treadle/error.h"

namespace treadle::ops {

namespace {

/// Returns the extent and the requested size of the axis that determines the common scale, each as a vector of one element. If both are
/// known, they are divided by their greatest common divisor, because the matrices of the gradient grow with the extent.
std::pair<ValueId, ValueId> deciding_axis(GradientContext& g, const std::vector<int64_t>& axes) {
  const bool not_larger = g.attributes().get_string("keep_aspect_ratio_policy") == "not_larger";
  const Type type = g.type(g.input(0));
  const Tensor* constant = g.graph().constant_tensor(g.input(3));
  if (type.is_static() && constant && constant->num_elements() == static_cast<int64_t>(axes.size())) {
    int64_t extent = 0, size = 0;
    for (size_t i = 0; i < axes.size(); ++i) {
      const int64_t own = std::max<int64_t>(type.static_shape()[normalize_axis(axes[i], type.rank(), "axes")], 1),
                    asked = constant->data<int64_t>()[i];
      const double scale = static_cast<double>(asked) / static_cast<double>(own),
                   least = static_cast<double>(size) / static_cast<double>(extent);
      if (i == 0 || (not_larger ? scale < least : scale > least)) extent = own, size = asked;
    }
    const int64_t divisor = std::max<int64_t>(std::gcd(extent, size), 1);
    return {g.ints({extent / divisor}), g.ints({size / divisor})};
  }
  auto as_double = [&](ValueId value) { return g.op("Cast", {value}, {{"to", static_cast<int64_t>(DType::float64)}}); };
  const ValueId extents = g.op("Gather", {g.shape_of(g.input(0)), g.ints(axes)});
  const ValueId scales = g.div(as_double(g.input(3)), as_double(extents));
  const ValueId place = g.op(not_larger ? "ArgMin" : "ArgMax", {scales}, {{"axis", int64_t{0}}, {"keepdims", int64_t{1}}});
  return {g.op("Gather", {extents, place}), g.op("Gather", {g.input(3), place})};
}

}  // namespace

namespace gradients {

// Along each axis, Resize multiplies by a matrix, which is the Resize of the identity matrix. roi and scales are treated as constants.
Gradients resize(GradientContext& g) {
  const ValueId x = g.input(0), roi = g.input(1), scales = g.input(2), y = g.output(0);
  const bool crops = g.attributes().get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize";
  const bool has_sizes =
      g.input(3) != kNoValue && !(g.type(g.input(3)).is_static() && g.type(g.input(3)).static_shape().num_elements() == 0);
  const bool keeps_ratio = has_sizes && g.attributes().get_string("keep_aspect_ratio_policy", "stretch") != "stretch";
  // Copies the scales, since adding nodes moves the tensors that the graph stores.
  std::vector<float> factors;
  if (const Tensor* constant = scales == kNoValue ? nullptr : g.graph().constant_tensor(scales))
    factors.assign(constant->data<float>(), constant->data<float>() + constant->num_elements());
  const bool by_scales = scales != kNoValue && !has_sizes;
  const int rank = rank_of(g, x);
  std::vector<int64_t> axes = g.attributes().get_ints("axes");
  if (axes.empty())
    for (int axis = 0; axis < rank; ++axis) axes.push_back(axis);
  Attributes attributes = g.attributes();
  attributes.set("axes", std::vector<int64_t>{0, 1});
  const bool not_larger = attributes.get_string("keep_aspect_ratio_policy") == "not_larger";
  const auto deciding = keeps_ratio ? deciding_axis(g, axes) : std::pair{kNoValue, kNoValue};
  attributes.set("extrapolation_value", 0.0F);
  const SymbolicShape in = *g.type(x).shape, out = *g.type(y).shape;
  const auto dtype = static_cast<int64_t>(g.type(x).dtype);
  const auto count = static_cast<int64_t>(axes.size());
  auto joined = [&](std::vector<ValueId> parts) { return g.op("Concat", std::move(parts), {{"axis", int64_t{0}}}); };
  auto element = [&](ValueId vector, int64_t i) { return g.op("Gather", {vector, g.ints({i})}); };
  ValueId dx = g.grad_output(0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<int>(normalize_axis(axes[i], rank, "axes"));
    const Dim from = in[static_cast<size_t>(axis)], to = out[static_cast<size_t>(axis)];
    if (from == to && !crops && !keeps_ratio && (!by_scales || (!factors.empty() && factors[i] == 1))) continue;
    const ValueId rows = element(g.shape_of(x), axis);
    ValueId identity = g.op("EyeLike", {g.op("ConstantOfShape", {joined({rows, rows})})}, {{"dtype", dtype}});
    // Adds a second axis, along which the matrix is constant. It has the extents that make the policy choose the common scale.
    if (keeps_ratio) identity = g.op("Expand", {g.op("Unsqueeze", {identity, g.ints({1})}), joined({rows, deciding.first, rows})});
    std::vector<ValueId> inputs{identity, kNoValue, kNoValue, kNoValue};
    if (crops && roi != kNoValue) {
      const ValueId unit = g.op("CastLike", {g.constant(Tensor::vector<float>(std::vector<float>{0, 1})), roi});
      inputs[1] = joined(
          {element(roi, static_cast<int64_t>(i)), element(unit, 0), element(roi, count + static_cast<int64_t>(i)), element(unit, 1)});
    }
    if (keeps_ratio)
      inputs[3] = joined({g.ints({not_larger ? int64_t{1} << 40 : 0}), deciding.second});
    else if (by_scales)
      inputs[2] = joined({element(scales, static_cast<int64_t>(i)), g.constant(Tensor::vector<float>(std::vector<float>{1}))}),
      inputs.pop_back();
    else
      inputs[3] = joined({element(g.shape_of(y), axis), rows});
    ValueId matrix = g.op("Resize", std::move(inputs), attributes);  // has the shape [extent of dY, extent of dX]
    if (keeps_ratio) matrix = g.op("Gather", {matrix, g.constant(Tensor::scalar<int64_t>(0))}, {{"axis", int64_t{1}}});
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
