// Normalisations over channels or neighbouring elements: InstanceNormalization, GroupNormalization, LRN, LpNormalization,
// MeanVarianceNormalization. BatchNormalization and normalisations of rows have their own files.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/movement/copy.h"
#include "kernels/normalization/norm.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
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

template <typename T, bool kInstance>
struct ChannelNorm {
  using C = compute_type_t<T>;
  int64_t N, channels, groups, inner;
  C epsilon;
  Wide x, y, scale, bias;

  static ChannelNorm bind(BindContext& c) {
    const Shape& shape = c.shape(0);
    ChannelNorm k{shape[0],
                  shape[1],
                  kInstance ? shape[1] : c.get_int("num_groups"),
                  shape.product(2, shape.rank()),
                  static_cast<C>(c.get_float("epsilon", 1e-5f)),
                  {},
                  {},
                  {},
                  {}};
    if (k.groups < 1 ? k.channels != 0 : k.channels % k.groups != 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} channels cannot be split into {} groups", k.channels, k.groups));
    check_equal(c.num_elements(1), k.channels, "scale and channels");
    check_equal(c.num_elements(2), k.channels, "bias and channels");
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
template <typename T>
using InstanceNormalization = ChannelNorm<T, true>;
template <typename T>
using GroupNormalization = ChannelNorm<T, false>;

// In opset 18, scale and bias had an element for each group; since opset 21 they have one for each channel.
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
struct LRN {
  using C = compute_type_t<T>;
  int64_t N, channels, inner, size;
  C alpha, beta, bias;
  Wide x, y;

  static LRN bind(BindContext& c) {
    const Shape& shape = c.shape(0);
    if (shape.rank() < 2)
      throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {}; it has a batch and channels", shape.rank()));
    const int64_t size = c.get_int("size");
    if (size < 1) throw Error(ErrorCode::invalid_argument, fmt::format("size is {}", size));
    LRN k{shape[0],
          shape[1],
          shape.product(2, shape.rank()),
          size,
          static_cast<C>(c.get_float("alpha", 1e-4f)),
          static_cast<C>(c.get_float("beta", 0.75f)),
          static_cast<C>(c.get_float("bias", 1)),
          {},
          {}};
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
    uint32_t reduced = 0;
    auto add = [&](int64_t axis) { reduced |= 1U << normalise_axis(axis, shape.rank(), "axes"); };
    if (c.node().attributes.has("axes")) {
      for (int64_t axis : c.get_ints("axes")) add(axis);
    } else {
      for (int64_t axis : {0, 2, 3}) add(axis);
    }
    MeanVarianceNormalization k{kernels::plan_reduce(shape.dims(), reduced), {}, {}};
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

// Before opset 9 the operator was experimental: across_channels chose the axes, and normalize_variance = 0 only subtracted the mean.
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
           .kernels = typed<InstanceNormalization, float, double, Float16, BFloat16>(),
           .gradient = gradients::instance_normalization,
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
           .kernels = typed<GroupNormalization, float, double, Float16, BFloat16>(),
           .gradient = gradients::group_normalization,
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
           .gradient = gradients::lrn,
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
           .gradient = gradients::lp_normalization,
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
           .gradient = gradients::mean_variance_normalization}};
}

}  // namespace treadle::ops
