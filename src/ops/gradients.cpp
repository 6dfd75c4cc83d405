#include "ops/gradients.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/infer.h"
#include "treadle/error.h"

namespace treadle::ops {

std::vector<OpDef> with_gradients(std::vector<OpDef> ops, std::initializer_list<std::pair<std::string_view, GradientRule>> rules) {
  for (const auto& [name, rule] : rules) {
    auto found = std::find_if(ops.begin(), ops.end(), [&name = name](const OpDef& op) { return op.name == name; });
    if (found == ops.end()) throw Error(ErrorCode::internal, fmt::format("a gradient rule names {}, which the family has not", name));
    found->gradient = rule;
  }
  return ops;
}

ValueId require_output(GradientContext& g, size_t i) {
  if (g.output(i) != kNoValue) return g.output(i);
  Graph& graph = g.graph();
  const NodeId id = g.node().id;
  const ValueId made = graph.add_value(fmt::format("{}/output{}", g.node().name, i));
  graph.value(made).producer = id;
  graph.value(made).output = static_cast<int>(i);
  Node& node = graph.node(id);
  if (node.outputs.size() <= i) node.outputs.resize(i + 1, kNoValue);
  node.outputs[i] = made;
  infer_node(graph, id);
  return made;
}

ValueId expand_like(GradientContext& g, ValueId x, ValueId like) {
  if (g.type(x).shape && g.type(like).shape && *g.type(x).shape == *g.type(like).shape) return x;
  return g.op("Expand", {x, g.shape_of(like)});
}

ValueId zeros_like(GradientContext& g, ValueId like) {
  const ValueId zero = is_float(g.type(like).dtype) ? g.scalar(0, like) : g.constant(Tensor::scalar(0.0F));
  return g.op("Expand", {zero, g.shape_of(like)});
}

ValueId elements_per_element(GradientContext& g, ValueId x, ValueId y) {
  const Type wide = g.type(x), narrow = g.type(y);  // these are copies, since adding nodes moves the types that the graph stores
  if (wide.is_static() && narrow.is_static() && narrow.static_shape().num_elements() > 0) {
    const int64_t ratio = wide.static_shape().num_elements() / narrow.static_shape().num_elements();  // divides without remainder
    return g.scalar(static_cast<double>(ratio), x);
  }
  // Computes the ratio of the two sizes with nodes. Symbolic extents that both shapes have in common often cancel out.
  const ValueId ratio = g.div(g.op("Size", {x}), g.op("Size", {y}));
  return g.op("Cast", {ratio}, {{"to", static_cast<int64_t>(wide.dtype)}});
}

int rank_of(const GradientContext& g, ValueId x) {
  if (!g.type(x).has_rank())
    throw Error(ErrorCode::not_implemented, fmt::format("the gradient needs the rank of \"{}\"", g.graph().value(x).name));
  return g.type(x).rank();
}

ValueId per_channel(GradientContext& g, ValueId parameter, int rank) {
  if (rank <= 2) return parameter;
  std::vector<int64_t> axes;
  for (int axis = 1; axis < rank - 1; ++axis) axes.push_back(axis);
  return g.op("Unsqueeze", {parameter, g.ints(std::move(axes))});
}

ValueId sum_per_channel(GradientContext& g, ValueId x) {
  std::vector<int64_t> axes{0};
  for (int axis = 2; axis < rank_of(g, x); ++axis) axes.push_back(axis);
  return g.reduce_sum(x, std::move(axes), /*keepdims=*/false);
}

ValueId widened(GradientContext& g, ValueId value) {
  if (value == kNoValue || (g.type(value).dtype != DType::float16 && g.type(value).dtype != DType::bfloat16)) return value;
  return g.op("Cast", {value}, {{"to", static_cast<int64_t>(DType::float32)}});
}

std::vector<ValueId> narrowed(GradientContext& g, std::vector<ValueId> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == kNoValue || g.input(i) == kNoValue) continue;
    const DType dtype = g.type(g.input(i)).dtype;
    if (g.type(values[i]).dtype != dtype) values[i] = g.op("Cast", {values[i]}, {{"to", static_cast<int64_t>(dtype)}});
  }
  return values;
}

ValueId masked(GradientContext& g, ValueId condition, ValueId dy) { return g.op("Where", {condition, dy, g.scalar(0, dy)}); }

namespace gradients {

Gradients none(GradientContext&) { return {}; }

}  // namespace gradients
}  // namespace treadle::ops
