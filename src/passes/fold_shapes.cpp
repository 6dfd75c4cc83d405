// Shape folding: if results of Shape, Gather, Concat and arithmetic on extents are known integers, they become constants.
#include <algorithm>

#include "graph/op_def.h"
#include "graph/rewriter.h"
#include "passes/list.h"
#include "passes/whole_graph.h"

namespace treadle::passes {
namespace {

// Returns the elements as a tensor if all of them are known integers.
std::optional<Tensor> known_tensor(const Value& value) {
  if (!value.known || !value.type.is_static()) return std::nullopt;
  Shape shape = value.type.static_shape();
  if (shape.num_elements() != static_cast<int64_t>(value.known->size())) return std::nullopt;
  if (!std::all_of(value.known->begin(), value.known->end(), [](const Dim& dim) { return dim.is_const(); })) return std::nullopt;
  auto fill = [&]<typename T>() {
    Tensor tensor(dtype_of<T>, shape);
    for (size_t i = 0; i < value.known->size(); ++i) tensor.data<T>()[i] = static_cast<T>((*value.known)[i].value());
    return tensor;
  };
  switch (value.type.dtype) {
    case DType::int64: return fill.operator()<int64_t>();
    case DType::int32: return fill.operator()<int32_t>();
    case DType::boolean: return fill.operator()<bool>();
    default: return std::nullopt;
  }
}

void make_constant(Value& value, const Tensor& tensor) {
  value.kind = Value::Kind::constant;
  value.constant = tensor;
  value.known.reset();
}

// If all outputs of the node that are read are known, replaces them by constants.
void fold(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  if (!node.bodies.empty() || !node.op || !node.op->deterministic) return;
  std::vector<std::pair<ValueId, Tensor>> constants;
  for (ValueId output : node.outputs) {
    if (output == kNoValue || (graph.value(output).uses.empty() && !graph.is_output(output))) continue;
    auto tensor = known_tensor(graph.value(output));
    if (!tensor) return;
    constants.emplace_back(output, *tensor);
  }
  if (constants.empty()) return;
  rewriter.change([&] {
    graph.remove_node(id);
    for (auto& [output, tensor] : constants) make_constant(graph.value(output), tensor);
    return true;
  });
}

// If the elements of a captured value are known, makes it a constant of the body. The pass remove-dead then drops the capture.
void fold_captures(Rewriter& rewriter, NodeId id) {
  for (Body& body : rewriter.graph().node(id).bodies)
    for (auto [inside, position] : body.captures) {
      const Value& value = body.graph->value(inside);
      const auto tensor = value.uses.empty() ? std::nullopt : known_tensor(value);
      if (!tensor) continue;
      rewriter.change([&] {
        body.graph->replace_uses(inside, body.graph->add_constant(std::string(value.name), *tensor));
        return true;
      });
    }
}

}  // namespace

int64_t fold_shapes(Graph& graph, int64_t limit, bool whole_shapes) {
  return Rewriter(graph, limit).for_each_graph([&](Rewriter& inside) {
    for (NodeId id : inside.graph().order()) {
      if (!whole_shapes) fold_captures(inside, id);
      if (!whole_shapes || inside.graph().node(id).is("Shape")) fold(inside, id);
    }
  });
}

Pass fold_shapes() {
  return graph_pass(
      "fold-shapes", kBasic, kAlways, "values that follow from constant extents become constants",
      [](Graph& graph, PassContext& context, int64_t limit) { return fold_shapes(graph, limit, context.options.keep_patterns); });
}

}  // namespace treadle::passes
