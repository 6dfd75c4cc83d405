// Gradient rules of normalisations that consist of ordinary operators.
#include "graph/infer.h"
#include "ops/gradients.h"

namespace treadle::ops::gradients {
namespace {

ValueId mean_over(GradientContext& g, ValueId value, const std::vector<int64_t>& axes) { return g.op("ReduceMean", {value, g.ints(axes)}); }

double epsilon_of(const GradientContext& g) { return static_cast<double>(g.attributes().get_float("epsilon", 1e-5F)); }

// Normalises x as [N, groups, -1]. With xhat = (x - mean) / std of a group and d = dy scale: dx = (d - mean(d) - xhat mean(d xhat)) / std
Result normalize_groups(GradientContext& g, int64_t groups) {
  const ValueId x = widened(g, g.input(0)), scale = widened(g, g.input(1)), dy = widened(g, g.grad_output(0));
  const int rank = rank_of(g, x);
  auto grouped = [&](ValueId value) { return g.op("Reshape", {value, g.ints({0, groups, -1})}); };
  const std::vector<int64_t> last{2};
  const ValueId columns = grouped(x), centred = g.sub(columns, mean_over(g, columns, last));
  const ValueId variance = mean_over(g, g.mul(centred, centred), last);
  const ValueId deviation = g.op("Sqrt", {g.add(variance, g.scalar(epsilon_of(g), x))});
  const ValueId normalised = g.div(centred, deviation), d = grouped(g.mul(dy, per_channel(g, scale, rank)));
  const ValueId slope = g.mul(normalised, mean_over(g, g.mul(d, normalised), last));
  const ValueId dx = g.div(g.sub(g.sub(d, mean_over(g, d, last)), slope), deviation);
  std::vector<int64_t> axes{0};
  for (int axis = 2; axis < rank; ++axis) axes.push_back(axis);
  return narrowed(
      g, {g.reshape_like(dx, x), g.reduce_sum(g.mul(dy, g.reshape_like(normalised, x)), axes, false), g.reduce_sum(dy, axes, false)});
}

/// The mean over each channel, the `below` channels before it and the `above` behind it. Channels beyond the ends count as 0.
ValueId mean_of_channels(GradientContext& g, ValueId value, int64_t below, int64_t above) {
  const ValueId shape = g.shape_of(value);
  auto extent = [&](int64_t axis) { return g.op("Gather", {shape, g.ints({axis})}); };
  const ValueId planes = g.op("Concat", {extent(0), g.ints({1}), extent(1), g.ints({-1})}, {{"axis", int64_t{0}}});
  const ValueId pooled = g.op("AveragePool", {g.op("Reshape", {value, planes})},
                              {{"kernel_shape", std::vector<int64_t>{below + above + 1, 1}},
                               {"pads", std::vector<int64_t>{below, 0, above, 0}},
                               {"count_include_pad", int64_t{1}}});
  return g.reshape_like(pooled, value);
}

}  // namespace

Result instance_normalization(GradientContext& g) { return normalize_groups(g, 0); }

Result group_normalization(GradientContext& g) { return normalize_groups(g, g.attributes().get_int("num_groups", 1)); }

// With n = x / rms of a row and d = dy scale: dx = (d - n mean(d n)) / rms
Result rms_normalization(GradientContext& g) {
  const ValueId x = widened(g, g.input(0)), scale = widened(g, g.input(1)), dy = widened(g, g.grad_output(0));
  if (Result whole = norm_of_rows(g, "RMSNormalizationGrad", dy, x, scale, kNoValue); !whole.empty()) return narrowed(g, std::move(whole));
  const int rank = rank_of(g, x);
  std::vector<int64_t> axes;
  for (int axis = normalise_axis(g.attributes().get_int("axis", -1), rank); axis < rank; ++axis) axes.push_back(axis);
  const ValueId root = g.op("Sqrt", {g.add(mean_over(g, g.mul(x, x), axes), g.scalar(epsilon_of(g), x))});
  const ValueId n = g.div(x, root), d = g.mul(dy, scale);
  return narrowed(g, {g.div(g.sub(d, g.mul(n, mean_over(g, g.mul(d, n), axes))), root), g.unbroadcast(g.mul(dy, n), scale)});
}

// y = c / (s + 1e-9) with c = x - mean and s = sqrt(mean(c^2)): dc = (dy - c / s mean(dy y)) / (s + 1e-9), dx = dc - mean(dc)
Result mean_variance_normalization(GradientContext& g) {
  const ValueId x = widened(g, g.input(0)), dy = widened(g, g.grad_output(0));
  const std::vector<int64_t> axes = g.attributes().has("axes") ? g.attributes().get_ints("axes") : std::vector<int64_t>{0, 2, 3};
  const ValueId centred = g.sub(x, mean_over(g, x, axes)), zero = g.scalar(0, x);
  const ValueId deviation = g.op("Sqrt", {mean_over(g, g.mul(centred, centred), axes)});
  const ValueId safe = g.op("Where", {g.op("Equal", {deviation, zero}), g.scalar(1, x), deviation});
  const ValueId slope = g.mul(g.div(centred, safe), mean_over(g, g.mul(dy, widened(g, g.output(0))), axes));
  const ValueId dc = g.div(g.sub(dy, slope), g.add(deviation, g.scalar(1e-9, x)));
  return narrowed(g, {g.sub(dc, mean_over(g, dc, axes))});
}

// y = x / norm: dx = (dy - s sum(dy y)) / norm, with s = y for p = 2 and sign(x) for p = 1; 0 where norm is 0.
Result lp_normalization(GradientContext& g) {
  const ValueId x = widened(g, g.input(0)), y = widened(g, g.output(0)), dy = widened(g, g.grad_output(0));
  const ValueId axis = g.ints({g.attributes().get_int("axis", -1)});
  const bool one = g.attributes().get_int("p", 2) == 1;
  const ValueId norm = g.op(one ? "ReduceL1" : "ReduceL2", {x, axis}), none = g.op("Equal", {norm, g.scalar(0, x)});
  const ValueId flow = g.sub(dy, g.mul(one ? g.op("Sign", {x}) : y, g.op("ReduceSum", {g.mul(dy, y), axis})));
  return narrowed(g, {g.op("Where", {none, g.scalar(0, x), g.div(flow, g.op("Where", {none, g.scalar(1, x), norm}))})});
}

// y = x s^-beta with s = bias + alpha mean(x^2): dx = dy s^-beta - 2 alpha beta x mean'(dy x s^(-beta - 1)). mean' is the transpose of
// mean: it covers the channels whose means include the element.
Result lrn(GradientContext& g) {
  const ValueId x = widened(g, g.input(0)), dy = widened(g, g.grad_output(0));
  const int64_t size = g.attributes().get_int("size", 1), below = (size - 1) / 2, above = size / 2;
  const auto number = [&](std::string_view name, float otherwise) {
    return static_cast<double>(g.attributes().get_float(name, otherwise));
  };
  const double alpha = number("alpha", 1e-4F), beta = number("beta", 0.75F), bias = number("bias", 1);
  const ValueId mean = mean_of_channels(g, g.mul(x, x), below, above);
  const ValueId s = g.add(g.mul(mean, g.scalar(alpha, x)), g.scalar(bias, x));
  const ValueId direct = g.mul(dy, g.op("Pow", {s, g.scalar(-beta, x)}));
  const ValueId spread = mean_of_channels(g, g.mul(g.div(direct, s), x), above, below);
  return narrowed(g, {g.sub(direct, g.mul(g.mul(x, g.scalar(2 * alpha * beta, x)), spread))});
}

}  // namespace treadle::ops::gradients
