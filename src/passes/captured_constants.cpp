#include "passes/captured_constants.h"

#include "graph/captures.h"
#include "graph/rewriter.h"
#include "passes/list.h"

namespace treadle::passes {

namespace {

bool copy_constants_into(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  size_t copied = 0;
  for (Body& body : node.bodies) {
    copied += std::erase_if(body.captures, [&](const std::pair<ValueId, int>& capture) {
      const Value& outside = graph.value(node.inputs[static_cast<size_t>(node.num_formal_inputs + capture.second)]);
      if (!outside.is_constant()) return false;
      Value& inside = body.graph->value(capture.first);
      inside.kind = Value::Kind::constant;
      inside.constant = outside.constant;
      inside.type = outside.type;
      inside.known.reset();
      std::erase(body.graph->inputs, capture.first);
      return true;
    });
  }
  if (copied > 0) drop_unused_captures(graph, id);
  return copied > 0;
}

}  // namespace

int64_t copy_captured_constants(Graph& graph) {
  return Rewriter(graph).for_each_graph([](Rewriter& inside) {
    for (NodeId id : inside.graph().order()) inside.change([&] { return copy_constants_into(inside.graph(), id); });
  });
}

Pass copy_captured_constants() {
  return graph_pass("copy-captured-constants", kBasic, kAlways, "constants that a body captures become its own",
                    [](Graph& graph, PassContext&, int64_t) { return copy_captured_constants(graph); });
}

}  // namespace treadle::passes
