#include "passes/captured_constants.h"

#include <algorithm>

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
    // Operands that no body reads any more go, and the rest move up.
    auto formal = static_cast<size_t>(node.num_formal_inputs);
    std::vector<ValueId> captured(node.inputs.begin() + node.num_formal_inputs, node.inputs.end());
    std::vector<int> moved(captured.size(), -1);
    std::vector<ValueId> kept;
    for (size_t position = 0; position < captured.size(); ++position) {
      bool used = std::any_of(node.bodies.begin(), node.bodies.end(), [&](const Body& body) {
        return std::any_of(body.captures.begin(), body.captures.end(), [&](const auto& c) { return c.second == static_cast<int>(position); });
      });
      if (!used) continue;
      moved[position] = static_cast<int>(kept.size());
      kept.push_back(captured[position]);
    }
    if (kept.size() != captured.size()) {
      for (size_t i = 0; i < captured.size(); ++i) graph.set_input(id, formal + i, i < kept.size() ? kept[i] : kNoValue);
      node.inputs.resize(formal + kept.size());
      for (Body& body : node.bodies)
        for (auto& capture : body.captures) capture.second = moved[static_cast<size_t>(capture.second)];
    }
    for (Body& body : node.bodies) count += copy_captured_constants(*body.graph);
  }
  return count;
}

}  // namespace treadle::passes
