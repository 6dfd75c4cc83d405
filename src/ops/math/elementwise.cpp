#include "ops/math/elementwise.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/checks.h"
#include "ops/decomposition.h"
#include "treadle/error.h"

namespace treadle::ops {

void infer_same_as_input(InferContext& c) { c.set_output(0, c.input(0)); }

std::optional<SymbolicShape> broadcast_inputs(const InferContext& c, int first) {
  std::optional<SymbolicShape> result;
  for (int i = first; i < c.num_inputs(); ++i) {
    if (!c.has_input(i)) continue;
    if (!c.has_rank(i)) return std::nullopt;
    result = result ? broadcast(*result, c.shape(i)) : c.shape(i);
  }
  return result;
}

void infer_broadcast(InferContext& c) {
  auto shape = broadcast_inputs(c);
  if (!shape) return c.set_output_dtype(0, c.dtype(0));
  c.set_output(0, c.dtype(0), *shape);
}

bool is_small_static(const SymbolicShape& shape) {
  int64_t count = 1;
  for (const Dim& extent : shape) {
    if (!extent.is_const() || extent.value() > kMaxKnownValues) return false;
    count *= extent.value();
    if (count > kMaxKnownValues) return false;
  }
  return true;
}

KnownValues broadcast_known(const KnownValues& values, const SymbolicShape& shape, const SymbolicShape& result) {
  KnownValues repeated;
  int64_t count = 1;
  for (const Dim& extent : result) count *= extent.value();
  size_t added = result.size() - shape.size();
  for (int64_t at = 0; at < count; ++at) {
    int64_t rest = at, index = 0, step = 1;
    for (size_t axis = result.size(); axis-- > 0;) {
      int64_t coordinate = rest % result[axis].value();
      rest /= result[axis].value();
      if (axis < added) continue;
      int64_t extent = shape[axis - added].value();
      if (extent != 1) index += coordinate * step;
      step *= extent;
    }
    repeated.push_back(values[static_cast<size_t>(index)]);
  }
  return repeated;
}

void propagate_binary(InferContext& c, const SymbolicShape& result, std::optional<Dim> (*fn)(const Dim& a, const Dim& b)) {
  if (!is_small_static(result)) return;
  auto a = c.known(0), b = c.known(1);
  if (!a || !b) return;
  KnownValues wide_a = broadcast_known(*a, c.shape(0), result), wide_b = broadcast_known(*b, c.shape(1), result);
  KnownValues values;
  for (size_t i = 0; i < wide_a.size(); ++i) {
    auto value = or_unknown([&] { return fn(wide_a[i], wide_b[i]); });
    if (!value) return;
    values.push_back(*value);
  }
  c.set_known(0, std::move(values));
}

std::optional<Dim> truncating_div(const Dim& a, const Dim& b) {
  if (b.is_const(0)) return std::nullopt;
  if (a.is_const() && b.is_const()) return Dim(b.value() == -1 ? -a.value() : a.value() / b.value());
  if (!is_nonnegative(b)) return std::nullopt;
  if (is_nonnegative(a)) return floor_div(a, b);
  Dim negated = Dim(0) - a;
  if (is_nonnegative(negated)) return Dim(0) - floor_div(negated, b);
  // Here a >= -1, for example h - 1 with an extent h. It is negative only for an empty axis (h = 0), whose quotient does not matter.
  if (is_nonnegative(a + Dim(1))) return floor_div(a, b);
  return std::nullopt;
}

void drop_consumed_inputs(Graph& graph, NodeId id) { graph.node(id).attributes.erase("consumed_inputs"); }

void upgrade_broadcast_axis(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  bool stretches = node.attributes.get_int("broadcast") != 0;
  bool has_axis = node.attributes.has("axis");
  int64_t axis = node.attributes.get_int("axis");
  node.attributes.erase("broadcast");
  node.attributes.erase("axis");
  if (!stretches || !has_axis) return;
  require_inputs(node, 2);
  const Type& a = graph.type(node.inputs[0]);
  const Type& b = graph.type(node.inputs[1]);
  if (axis < -kMaxRank || axis > kMaxRank) throw Error(ErrorCode::invalid_model, fmt::format("axis is {}", axis));
  if (!a.has_rank() || !b.has_rank()) {
    NodeWriter writer(graph, id, node.name);
    const ValueId behind = axis < 0 ? writer.ints({-axis}) : writer.op("Sub", {writer.rank_of(node.inputs[0]), writer.ints({axis})});
    const ValueId missing = writer.op("Sub", {behind, writer.rank_of(node.inputs[1])});
    return graph.set_input(id, 1, writer.with_axes_behind(node.inputs[1], missing));
  }
  int first = normalize_axis(axis, a.rank());
  int missing = a.rank() - first - b.rank();
  if (missing < 0)
    throw Error(ErrorCode::invalid_model,
                fmt::format("B with {} axes does not fit A with {} axes from axis {} on", b.rank(), a.rank(), first));
  if (missing == 0) return;
  std::vector<int64_t> axes;
  for (int i = 0; i < missing; ++i) axes.push_back(b.rank() + i);
  ValueId axes_value = graph.add_constant("axes", Tensor::vector<int64_t>(axes));
  NodeId unsqueeze = graph.add_node({.op_type = "Unsqueeze", .inputs = {node.inputs[1], axes_value}}, id);
  graph.set_input(id, 1, graph.node(unsqueeze).outputs[0]);
}

}  // namespace treadle::ops
