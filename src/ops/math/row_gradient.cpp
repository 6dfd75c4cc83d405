// Implements the gradients of operators over rows, each as one node: LayerNormalizationGrad, RMSNormalizationGrad and SoftmaxGrad of the
// treadle domain.
#include "kernels/normalization/row_gradient.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/infer.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/nn/normalization.h"
#include "ops/nn/second_normalization.h"
#include "treadle/error.h"

namespace treadle::ops {

GradientRows GradientRows::of_normalization(const BindContext& c) {
  const Shape &x = c.shape(1), &scale = c.shape(2);
  const int axis = c.axis("axis", -1, x.rank());
  const GradientRows k{x.product(0, axis), x.product(axis, x.rank())};
  if (!(c.shape(0) == x) || scale.num_elements() != k.length)
    throw Error(ErrorCode::invalid_argument, fmt::format("dY {}, X {} and scale {} are of no normalisation from axis {} on",
                                                         to_string(c.shape(0)), to_string(x), to_string(scale), axis));
  return k;
}

GradientRows GradientRows::of_softmax(const BindContext& c) {
  const Shape& y = c.shape(0);
  if (!(c.shape(1) == y) || y.rank() < 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("Y {} and dY {} are of no softmax", to_string(y), to_string(c.shape(1))));
  return {y.product(0, y.rank() - 1), y.back()};
}

namespace {

constexpr TypeSet kRowTypes{DType::float32, DType::float64};

void infer_norm_grad(InferContext& c) {
  c.set_output(0, c.input(1));
  for (int i : {1, 2})
    if (c.has_output(i)) c.set_output(i, c.input(2));
}

template <typename T, bool kCentered>
struct NormalizationGrad : GradientRows {
  double epsilon;

  static NormalizationGrad bind(BindContext& c) {
    const NormalizationGrad k{of_normalization(c), static_cast<double>(c.get_float("epsilon", 1e-5F))};
    c.request_scratch(kernels::norm_gradient_scratch_bytes(k.rows, k.length, sizeof(T)));
    return k;
  }
  void run(RunContext& c) const {
    kernels::norm_gradient<T>({.rows = rows,
                               .length = length,
                               .centered = kCentered,
                               .epsilon = epsilon,
                               .dy = c.in<T>(0),
                               .x = c.in<T>(1),
                               .scale = c.in<T>(2),
                               .dx = c.out<T>(0),
                               .dscale = c.out<T>(1),
                               .dbias = kCentered ? c.out<T>(2) : nullptr},
                              c.scratch<void>(), c.pool());
  }
};
template <typename T>
using LayerNormalizationGrad = NormalizationGrad<T, true>;
template <typename T>
using RMSNormalizationGrad = NormalizationGrad<T, false>;

template <typename T>
struct SoftmaxGrad : GradientRows {
  static SoftmaxGrad bind(BindContext& c) { return {of_softmax(c)}; }
  void run(RunContext& c) const { kernels::softmax_gradient(rows, length, c.in<T>(0), c.in<T>(1), c.out<T>(0), c.pool()); }
};

// Second derivatives: the gradients of these gradient operators.

std::vector<ValueId> norm_grad_gradient(GradientContext& g) {
  const int rank = rank_of(g, g.input(1));
  std::vector<int64_t> axes;
  for (int axis = normalize_axis(g.attributes().get_int("axis", -1), rank); axis < rank; ++axis) axes.push_back(axis);
  return gradients::second_normalization(g, axes, g.node().op_type == "LayerNormalizationGrad", g.input(2));
}

// dX = Y (dY - sum(Y dY)) is linear in dY, with a symmetric matrix. So the gradient with respect to dY is computed by another SoftmaxGrad.
std::vector<ValueId> softmax_grad_gradient(GradientContext& g) {
  const ValueId y = g.input(0), dy = g.input(1), u = g.grad_output(0);
  auto dot = [&](ValueId a, ValueId b) { return g.reduce_sum(g.mul(a, b), {-1}, /*keepdims=*/true); };
  return {g.sub(g.mul(u, g.sub(dy, dot(y, dy))), g.mul(dy, dot(u, y))), g.op("SoftmaxGrad", {y, u}, {}, "treadle")};
}

OpDef norm_grad(std::string_view name, std::vector<KernelDef> kernels) {
  return {.name = name,
          .domain = "treadle",
          .since = {1},
          .inputs = {{"dY", kRowTypes, "T"}, {"X", kRowTypes, "T"}, {"scale", kRowTypes, "T"}},
          .outputs = {{"dX", kRowTypes, "T"}, {"dscale", kRowTypes, "T", Presence::optional}},
          .attributes = {{"axis", int64_t{-1}}, {"epsilon", 1e-5F}},
          .infer = infer_norm_grad,
          .cost = elementwise_cost<14>,
          .alias = {may_reuse(0, 0), may_reuse(0, 1)},
          .kernels = std::move(kernels),
          .gradient = norm_grad_gradient};
}

}  // namespace

namespace gradients {

Gradients norm_of_rows(GradientContext& g, std::string_view op, ValueId dy, ValueId x, ValueId scale, ValueId bias) {
  const Type wide = g.type(x), narrow = g.type(scale);
  if (!wide.has_rank() || !narrow.has_rank() || dy == kNoValue) return {};
  const int axis = normalize_axis(g.attributes().get_int("axis", -1), wide.rank());
  if (!std::equal(wide.shape->begin() + axis, wide.shape->end(), narrow.shape->begin(), narrow.shape->end())) return {};
  Gradients result = g.op_n(op, {dy, x, scale}, op == "LayerNormalizationGrad" ? 3 : 2,
                            {{"axis", static_cast<int64_t>(axis)}, {"epsilon", g.attributes().get_float("epsilon", 1e-5F)}}, "treadle");
  if (bias == kNoValue) {
    result.resize(2);
  } else if (g.type(bias).shape != narrow.shape) {
    // The bias may be broadcast even if the scale is not.
    result.resize(2);
    result.push_back(g.unbroadcast(dy, bias));
  }
  return result;
}

}  // namespace gradients

std::vector<OpDef> row_gradient_ops() {
  OpDef layer = norm_grad("LayerNormalizationGrad", typed<LayerNormalizationGrad, float, double>());
  layer.outputs.push_back({"dbias", kRowTypes, "T", Presence::optional});
  OpDef rms = norm_grad("RMSNormalizationGrad", typed<RMSNormalizationGrad, float, double>());
  return {layer,
          rms,
          {.name = "SoftmaxGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"Y", kRowTypes, "T"}, {"dY", kRowTypes, "T"}},
           .outputs = {{"dX", kRowTypes, "T"}},
           .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
           .cost = elementwise_cost<4>,
           .alias = {may_reuse(0, 1), may_reuse(0, 0)},
           .kernels = typed<SoftmaxGrad, float, double>(),
           .gradient = softmax_grad_gradient}};
}

}  // namespace treadle::ops
