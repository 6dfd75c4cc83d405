// Implements normalizations over channels or neighboring elements: InstanceNormalization, GroupNormalization, LRN, LpNormalization,
// MeanVarianceNormalization. BatchNormalization and the normalizations of rows are in other files.
#include "ops/nn/normalization.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/movement/copy.h"
#include "kernels/normalization/norm.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {

ChannelGroups ChannelGroups::bind(const BindContext& c) {
  const Shape& x = c.shape(0);
  const int64_t groups = c.node().op_type == "GroupNormalization" ? c.get_int("num_groups") : x[1];
  check_channel_groups(c, x[1], groups);
  return {x[0], x[1], groups, x.product(2, x.rank())};
}

LocalResponsePlan LocalResponsePlan::bind(const BindContext& c) {
  const Shape& x = c.shape(0);
  if (x.rank() < 2) throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {}; it has a batch and channels", x.rank()));
  const int64_t size = c.get_int("size");
  if (size < 1) throw Error(ErrorCode::invalid_argument, fmt::format("size is {}", size));
  return {x[0], x[1], x.product(2, x.rank()), size, c.get_float("alpha", 1e-4F), c.get_float("beta", 0.75F), c.get_float("bias", 1)};
}

uint32_t mean_variance_axes(const BindContext& c) {
  static const std::vector<int64_t> kDefaultAxes{0, 2, 3};
  uint32_t reduced = 0;
  for (const int64_t axis : c.node().attributes.has("axes") ? c.get_ints("axes") : kDefaultAxes)
    reduced |= 1U << normalize_axis(axis, c.shape(0).rank(), "axes");
  return reduced;
}

namespace {

// InstanceNormalization and GroupNormalization.

void infer_channels(InferContext& c) {
  c.set_output(0, c.input(0));
  if (!c.has_rank(0)) return;
  if (c.rank(0) < 2)
    throw Error(ErrorCode::invalid_argument, fmt::format("the input is of rank {}; it has a batch and channels", c.rank(0)));
  for (int i : {1, 2}) {
    if (!c.has_rank(i)) continue;
    if (c.rank(i) != 1) throw Error(ErrorCode::invalid_argument, fmt::format("the input {} is of rank {}, not 1", i, c.rank(i)));
    unify(c.shape(i)[0], c.shape(0)[1], "scale or bias and channels");
  }
}

template <typename T>
struct ChannelNorm : ChannelGroups {
  using C = compute_type_t<T>;
  C epsilon;
  Wide x, y, scale, bias;

  static ChannelNorm bind(BindContext& c) {
    const Shape& shape = c.shape(0);
    ChannelNorm k{ChannelGroups::bind(c), static_cast<C>(c.get_float("epsilon", 1e-5f)), {}, {}, {}, {}};
    ScratchLayout layout;
    k.x = reserve_wide<T>(layout, shape.num_elements());
    k.y = reserve_wide<T>(layout, shape.num_elements());
    k.scale = reserve_wide<T>(layout, c.num_elements(1));
    k.bias = reserve_wide<T>(layout, c.num_elements(2));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    if (y.count == 0) return;
    const C* in = widen(c, c.in<T>(0), x);
    const C *factor = widen(c, c.in<T>(1), scale), *addend = widen(c, c.in<T>(2), bias);
    kernels::group_norm<C>(N, channels, groups, inner, in, factor, addend, epsilon, wide_output(c, c.out<T>(0), y), c.pool());
    narrow(c, y, c.out<T>(0));
  }
};

// Upgrades opset 18, where scale and bias had an element for each group. Since opset 21 they have one for each channel.
void repeat_for_channels(Graph& graph, NodeId id) {
  require_inputs(graph.node(id), 3);
  const ValueId x = graph.node(id).inputs[0];
  const int64_t groups = graph.node(id).attributes.get_int("num_groups", 1);
  auto add = [&](NodeSpec spec) { return graph.node(graph.add_node(std::move(spec), id)).outputs[0]; };
  auto constant = [&](std::vector<int64_t> values) { return graph.add_constant("shape", Tensor::vector<int64_t>(values)); };
  const ValueId channels = add({.op_type = "Shape", .inputs = {x}, .attributes = {{"start", int64_t{1}}, {"end", int64_t{2}}}});
  const ValueId size = add({.op_type = "Div", .inputs = {channels, constant({groups})}});
  const ValueId shape = add({.op_type = "Concat", .inputs = {constant({groups}), size}, .attributes = {{"axis", int64_t{0}}}});
  for (size_t i : {1, 2}) {
    const ValueId column = add({.op_type = "Unsqueeze", .inputs = {graph.node(id).inputs[i], constant({1})}});
    const ValueId matrix = add({.op_type = "Expand", .inputs = {column, shape}});
    graph.set_input(id, i, add({.op_type = "Reshape", .inputs = {matrix, constant({-1})}}));
  }
}

template <typename T>
struct LRN : LocalResponsePlan {
  using C = compute_type_t<T>;
  Wide x, y;

  static LRN bind(BindContext& c) {
    const Shape& shape = c.shape(0);
    LRN k{LocalResponsePlan::bind(c), {}, {}};
    ScratchLayout layout;
    k.x = reserve_wide<T>(layout, shape.num_elements());
    k.y = reserve_wide<T>(layout, shape.num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const C* in = widen(c, c.in<T>(0), x);
    kernels::lrn<C>(N, channels, inner, size, alpha, beta, bias, in, wide_output(c, c.out<T>(0), y), c.pool());
    narrow(c, y, c.out<T>(0));
  }
};

Cost lrn_cost(const ShapeContext& c) {
  const auto elements = static_cast<double>(c.num_elements(0));
  const double channels = c.shape(0).rank() < 2 ? 1 : static_cast<double>(c.shape(0)[1]);
  return {(16 + 2 * std::min(channels, static_cast<double>(c.get_int("size")))) * elements, 2 * c.size_bytes(0)};
}

template <typename T>
struct LpNormalization {
  using C = compute_type_t<T>;
  int64_t outer, length, inner;
  int order;
  Wide x, y;

  static LpNormalization bind(BindContext& c) {
    const Shape& shape = c.shape(0);
    const int axis = c.axis("axis", -1, shape.rank());
    const int64_t p = c.get_int("p", 2);
    if (p != 1 && p != 2) throw Error(ErrorCode::invalid_argument, fmt::format("p is {}, not 1 or 2", p));
    LpNormalization k{shape.product(0, axis), shape[axis], shape.product(axis + 1, shape.rank()), static_cast<int>(p), {}, {}};
    ScratchLayout layout;
    k.x = reserve_wide<T>(layout, shape.num_elements());
    k.y = reserve_wide<T>(layout, shape.num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const C* in = widen(c, c.in<T>(0), x);
    kernels::lp_normalize<C>(outer, length, inner, order, in, wide_output(c, c.out<T>(0), y), c.pool());
    narrow(c, y, c.out<T>(0));
  }
};

template <typename T>
struct MeanVarianceNormalization {
  using C = compute_type_t<T>;
  kernels::ReducePlan plan;
  Wide x, y;

  static MeanVarianceNormalization bind(BindContext& c) {
    const Shape& shape = c.shape(0);
    MeanVarianceNormalization k{kernels::plan_reduce(shape.dims(), mean_variance_axes(c)), {}, {}};
    ScratchLayout layout;
    k.x = reserve_wide<T>(layout, shape.num_elements());
    k.y = reserve_wide<T>(layout, shape.num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const C* in = widen(c, c.in<T>(0), x);
    kernels::mean_variance_normalize<C>(plan, in, wide_output(c, c.out<T>(0), y), c.pool());
    narrow(c, y, c.out<T>(0));
  }
};

// Upgrades nodes from before opset 9, where the operator was experimental: across_channels selected the axes, and normalize_variance = 0
// asked for subtracting the mean only.
void mean_variance_from_channels(Graph& graph, NodeId id) {
  Attributes& attributes = graph.node(id).attributes;
  const bool across = attributes.get_int("across_channels", 0) != 0, scales = attributes.get_int("normalize_variance", 1) != 0;
  const std::vector<int64_t> axes = across ? std::vector<int64_t>{0, 1, 2, 3} : std::vector<int64_t>{0, 2, 3};
  attributes.erase("across_channels");
  attributes.erase("normalize_variance");
  attributes.set("axes", axes);
  if (scales) return;
  const ValueId x = graph.node(id).inputs[0], along = graph.add_constant("axes", Tensor::vector<int64_t>(axes));
  const NodeId mean = graph.add_node({.op_type = "ReduceMean", .inputs = {x, along}}, id);
  const NodeId difference = graph.add_node({.op_type = "Sub", .inputs = {x, graph.node(mean).outputs[0]}}, id);
  graph.replace_uses(graph.node(id).outputs[0], graph.node(difference).outputs[0]);
  graph.remove_node(id);
}

ValueId mean_over(GradientContext& g, ValueId value, const std::vector<int64_t>& axes) { return g.op("ReduceMean", {value, g.ints(axes)}); }

double epsilon_of(const GradientContext& g) { return static_cast<double>(g.attributes().get_float("epsilon", 1e-5F)); }

// Differentiates the normalization of x as [N, groups, -1]. For a group, let xhat = (x - mean) / std and d = dy scale. Then dx = (d -
// mean(d) - xhat mean(d xhat)) / std.
Gradients normalize_groups(GradientContext& g, int64_t groups) {
  const ValueId x = widened(g, g.input(0)), scale = widened(g, g.input(1)), dy = widened(g, g.grad_output(0));
  const int rank = rank_of(g, x);
  auto grouped = [&](ValueId value) { return g.op("Reshape", {value, g.ints({0, groups, -1})}); };
  const std::vector<int64_t> last{2};
  const ValueId columns = grouped(x), centered = g.sub(columns, mean_over(g, columns, last));
  const ValueId variance = mean_over(g, g.mul(centered, centered), last);
  const ValueId deviation = g.op("Sqrt", {g.add(variance, g.scalar(epsilon_of(g), x))});
  const ValueId normalized = g.div(centered, deviation), d = grouped(g.mul(dy, per_channel(g, scale, rank)));
  const ValueId slope = g.mul(normalized, mean_over(g, g.mul(d, normalized), last));
  const ValueId dx = g.div(g.sub(g.sub(d, mean_over(g, d, last)), slope), deviation);
  std::vector<int64_t> axes{0};
  for (int axis = 2; axis < rank; ++axis) axes.push_back(axis);
  return narrowed(
      g, {g.reshape_like(dx, x), g.reduce_sum(g.mul(dy, g.reshape_like(normalized, x)), axes, false), g.reduce_sum(dy, axes, false)});
}

/// Returns, for each element, the mean over its channel, the `below` channels before and the `above` channels after it. Channels that do
/// not exist count as 0.
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

Gradients instance_normalization_gradient(GradientContext& g) { return normalize_groups(g, 0); }

Gradients group_normalization_gradient(GradientContext& g) { return normalize_groups(g, g.attributes().get_int("num_groups", 1)); }

// Differentiates y = c / (s + 1e-9), where c = x - mean and s = sqrt(mean(c^2)). Then dc = (dy - c / s mean(dy y)) / (s + 1e-9) and dx = dc
// - mean(dc).
Gradients mean_variance_normalization_gradient(GradientContext& g) {
  const ValueId x = widened(g, g.input(0)), dy = widened(g, g.grad_output(0));
  const std::vector<int64_t> axes = g.attributes().has("axes") ? g.attributes().get_ints("axes") : std::vector<int64_t>{0, 2, 3};
  const ValueId centered = g.sub(x, mean_over(g, x, axes)), zero = g.scalar(0, x);
  const ValueId deviation = g.op("Sqrt", {mean_over(g, g.mul(centered, centered), axes)});
  const ValueId safe = g.op("Where", {g.op("Equal", {deviation, zero}), g.scalar(1, x), deviation});
  const ValueId slope = g.mul(g.div(centered, safe), mean_over(g, g.mul(dy, widened(g, g.output(0))), axes));
  const ValueId dc = g.div(g.sub(dy, slope), g.add(deviation, g.scalar(1e-9, x)));
  return narrowed(g, {g.sub(dc, mean_over(g, dc, axes))});
}

// Differentiates y = x / n: dx = (dy - s sum(dy y)) / n, where s = y for p = 2 and s = sign(x) for p = 1. Where n is 0, dx is 0.
Gradients lp_normalization_gradient(GradientContext& g) {
  const ValueId x = widened(g, g.input(0)), y = widened(g, g.output(0)), dy = widened(g, g.grad_output(0));
  const ValueId axis = g.ints({g.attributes().get_int("axis", -1)});
  const bool one = g.attributes().get_int("p", 2) == 1;
  const ValueId norm = g.op(one ? "ReduceL1" : "ReduceL2", {x, axis}), none = g.op("Equal", {norm, g.scalar(0, x)});
  const ValueId flow = g.sub(dy, g.mul(one ? g.op("Sign", {x}) : y, g.op("ReduceSum", {g.mul(dy, y), axis})));
  return narrowed(g, {g.op("Where", {none, g.scalar(0, x), g.div(flow, g.op("Where", {none, g.scalar(1, x), norm}))})});
}

// Differentiates y = x s^-beta, where s = bias + alpha mean(x^2): dx = dy s^-beta - 2 alpha beta x mean'(dy x s^(-beta - 1)). mean' is over
// the channels whose mean includes the element.
Gradients lrn_gradient(GradientContext& g) {
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

}  // namespace

std::vector<OpDef> normalization_ops() {
  return {{.name = "InstanceNormalization",
           .since = {1, 6, 22},
           .upgrade = {{1, drop_consumed_inputs}},
           .inputs = {{"input", kFloats, "T"}, {"scale", kFloats, "T"}, {"B", kFloats, "T"}},
           .outputs = {{"output", kFloats, "T"}},
           .attributes = {{"epsilon", 1e-5f}},
           .infer = infer_channels,
           .cost = elementwise_cost<8>,
           .alias = {may_reuse(0, 0)},
           .kernels = typed<ChannelNorm, float, double, Float16, BFloat16>(),
           .gradient = instance_normalization_gradient,
           .half = HalfFloats::float32_by_itself,
           .channels_last = {ChannelsLast::How::normalization, "NhwcGroupNormalization"}},
          {.name = "GroupNormalization",
           .since = {18, 21},
           .upgrade = {{18, repeat_for_channels}},
           .inputs = {{"X", kFloats, "T"}, {"scale", kFloats, "T"}, {"bias", kFloats, "T"}},
           .outputs = {{"Y", kFloats, "T"}},
           .attributes = {{"num_groups", AttributeDef::Required{}}, {"epsilon", 1e-5f}, {"stash_type", int64_t{1}}},
           .infer = infer_channels,
           .cost = elementwise_cost<8>,
           .alias = {may_reuse(0, 0)},
           .kernels = typed<ChannelNorm, float, double, Float16, BFloat16>(),
           .gradient = group_normalization_gradient,
           .half = HalfFloats::float32_by_itself,
           .channels_last = {ChannelsLast::How::normalization, "NhwcGroupNormalization"}},
          {.name = "LRN",
           .since = {1, 13},
           .inputs = {{"X", kFloats, "T"}},
           .outputs = {{"Y", kFloats, "T"}},
           .attributes = {{"alpha", 1e-4f}, {"beta", 0.75f}, {"bias", 1.0f}, {"size", AttributeDef::Required{}}},
           .infer = infer_same_as_input,
           .cost = lrn_cost,
           .kernels = typed<LRN, float, double, Float16, BFloat16>(),
           .gradient = lrn_gradient,
           .half = HalfFloats::float32_by_itself},
          {.name = "LpNormalization",
           .since = {1, 22},
           .inputs = {{"input", kFloats, "T"}},
           .outputs = {{"output", kFloats, "T"}},
           .attributes = {{"axis", int64_t{-1}}, {"p", int64_t{2}}},
           .infer = infer_same_as_input,
           .cost = elementwise_cost<4>,
           .alias = {may_reuse(0, 0)},
           .kernels = typed<LpNormalization, float, double, Float16, BFloat16>(),
           .gradient = lp_normalization_gradient,
           .half = HalfFloats::float32_by_itself},
          {.name = "MeanVarianceNormalization",
           .since = {1, 9, 13},
           .upgrade = {{1, mean_variance_from_channels}},
           .inputs = {{"X", kFloats, "T"}},
           .outputs = {{"Y", kFloats, "T"}},
           .attributes = {{"axes"}},
           .infer = infer_same_as_input,
           .cost = elementwise_cost<8>,
           .alias = {may_reuse(0, 0)},
           .kernels = typed<MeanVarianceNormalization, float, double, Float16, BFloat16>(),
           .gradient = mean_variance_normalization_gradient}};
}

}  // namespace treadle::ops
