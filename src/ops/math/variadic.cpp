// Implements Max, Min, Sum and Mean of any number of tensors, with broadcasting. Each is decomposed into a chain of binary operators, which
// can be fused with other pointwise operators.
#include <algorithm>
#include <cmath>

#include "graph/op_def.h"
#include "ops/functions.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"

namespace treadle::ops {
namespace {

using kernels::ChainOp;

// The result is NaN if either operand is NaN, as in NumPy's maximum.
struct MaxFn {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return a > b || a != a ? a : b;
    else
      return std::max(a, b);
  }
};
struct MinFn {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return a < b || a != a ? a : b;
    else
      return std::min(a, b);
  }
};

/// Adds binary nodes in front of a node: `op_type` of inputs 0 and 1, then `op_type` of that result and input 2, and so on.
/// Returns the last result.
ValueId chain_of_pairs(Graph& graph, NodeId id, const char* op_type) {
  ValueId result = graph.node(id).inputs[0];
  int count = graph.node(id).num_formal_inputs;
  for (int i = 1; i < count; ++i) {
    NodeId pair = graph.add_node({.op_type = op_type, .inputs = {result, graph.node(id).inputs[static_cast<size_t>(i)]}}, id);
    result = graph.node(pair).outputs[0];
  }
  return result;
}

void replace_by(Graph& graph, NodeId id, ValueId result) {
  // There is no binary node if there is only one input. An Identity is added then, since the result needs a node that produces it.
  if (result == graph.node(id).inputs[0]) {
    NodeId same = graph.add_node({.op_type = "Identity", .inputs = {result}}, id);
    result = graph.node(same).outputs[0];
  }
  graph.replace_uses(graph.node(id).outputs[0], result);
  graph.remove_node(id);
}

void decompose_max(Graph& graph, NodeId id) {
  if (graph.node(id).num_formal_inputs != 2) replace_by(graph, id, chain_of_pairs(graph, id, "Max"));
}
void decompose_min(Graph& graph, NodeId id) {
  if (graph.node(id).num_formal_inputs != 2) replace_by(graph, id, chain_of_pairs(graph, id, "Min"));
}
void decompose_sum(Graph& graph, NodeId id) { replace_by(graph, id, chain_of_pairs(graph, id, "Add")); }

void decompose_mean(Graph& graph, NodeId id) {
  int count = graph.node(id).num_formal_inputs;
  ValueId result = chain_of_pairs(graph, id, "Add");
  if (count > 1) {
    ValueId number = graph.add_constant("count", Tensor::scalar(static_cast<float>(count)));
    NodeId like = graph.add_node({.op_type = "CastLike", .inputs = {number, graph.node(id).inputs[0]}}, id);
    NodeId quotient = graph.add_node({.op_type = "Div", .inputs = {result, graph.node(like).outputs[0]}}, id);
    result = graph.node(quotient).outputs[0];
  }
  replace_by(graph, id, result);
}

void infer_extremum(InferContext& c, std::optional<Dim> (*fn)(const Dim& a, const Dim& b)) {
  auto shape = broadcast_inputs(c);
  if (!shape) return c.set_output_dtype(0, c.dtype(0));
  c.set_output(0, c.dtype(0), *shape);
  if (is_integer(c.dtype(0)) && c.num_inputs() == 2) propagate_binary(c, *shape, fn);
}
void infer_max(InferContext& c) {
  infer_extremum(c, [](const Dim& a, const Dim& b) -> std::optional<Dim> { return maximum(a, b); });
}
void infer_min(InferContext& c) {
  infer_extremum(c, [](const Dim& a, const Dim& b) -> std::optional<Dim> { return minimum(a, b); });
}

template <typename F>
std::vector<KernelDef> extremum_kernels() {
  return binary_kernels<F, int64_t, double, int32_t, Float16, BFloat16, int8_t, int16_t, uint8_t, uint16_t, uint32_t, uint64_t>();
}

OpDef variadic(std::string_view name, std::vector<int> since, TypeSet types, void (*infer)(InferContext&), RewriteNode decompose,
               std::vector<KernelDef> kernels) {
  return {.name = name,
          .since = std::move(since),
          .upgrade = {{1, drop_consumed_inputs}},
          .inputs = {{"data_0", types, "T", Presence::variadic}},
          .outputs = {{"result", types, "T"}},
          .infer = infer,
          .cost = elementwise_cost<1>,
          .alias = {may_reuse(0, 0), may_reuse(0, 1)},
          .kernels = std::move(kernels),
          .decompose = decompose,
          .half = HalfFloats::float32};
}

// The gradient of Max and Min. The operand that has the extreme value gets the whole gradient; if both are equal, the first one gets it.
Gradients extremum(GradientContext& g, std::string_view comparison) {
  const ValueId a = g.input(0), b = g.input(1), dy = g.grad_output(0);
  if (b == kNoValue) return {dy};
  const ValueId first = g.op(comparison, {a, b}), zero = g.scalar(0, dy);
  return {g.unbroadcast(g.op("Where", {first, dy, zero}), a), g.unbroadcast(g.op("Where", {first, zero, dy}), b)};
}

Gradients maximum_gradient(GradientContext& g) { return extremum(g, "GreaterOrEqual"); }

Gradients minimum_gradient(GradientContext& g) { return extremum(g, "LessOrEqual"); }

}  // namespace

std::vector<OpDef> variadic_ops() {
  OpDef sum = variadic("Sum", {1, 6, 8, 13}, kFloats, infer_broadcast, decompose_sum, {});
  OpDef mean = variadic("Mean", {1, 6, 8, 13}, kFloats, infer_broadcast, decompose_mean, {});
  sum.alias = mean.alias = {};
  std::vector<OpDef> ops = {with_chain_steps(variadic("Max", {1, 6, 8, 12, 13}, kNumeric, infer_max, decompose_max,
                                                      vectorized_binary<kernels::Binary::max>() + extremum_kernels<MaxFn>()),
                                             ChainOp::max, ChainOp::max),
                            with_chain_steps(variadic("Min", {1, 6, 8, 12, 13}, kNumeric, infer_min, decompose_min,
                                                      vectorized_binary<kernels::Binary::min>() + extremum_kernels<MinFn>()),
                                             ChainOp::min, ChainOp::min),
                            sum, mean};
  return with_gradients(std::move(ops), {{"Max", maximum_gradient}, {"Min", minimum_gradient}});
}

}  // namespace treadle::ops
