#include "passes/captured_constants.h"

#include "passes/captures.h"

namespace treadle::passes {

int64_t copy_captured_constants(Graph& graph) {
  int64_t count = 0;
  for (NodeId id : graph.order()) {
    Node& node = graph.node(id);
    if (node.bodies.empty()) continue;
    for (Body& body : node.bodies) {
      std::erase_if(body.captures, [&](const std::pair<ValueId, int>& capture) {
        const Value& outside = graph.value(node.inputs[static_cast<size_t>(node.num_formal_inputs + capture.second)]);
        if (!outside.is_constant()) return false;
        Value& inside = body.graph->value(capture.first);
        inside.kind = Value::Kind::constant;
        inside.constant = outside.constant;
        inside.type = outside.type;
        inside.known.reset();
        std::erase(body.graph->inputs, capture.first);
        ++count;
        return true;
      });
    }
    drop_unused_captures(graph, id);
    for (Body& body : node.bodies) count += copy_captured_constants(*body.graph);
  }
  return count;
}

}  // namespace treadle::passes
