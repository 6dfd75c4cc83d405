#include "graph/captures.h"

#include <algorithm>
#include <vector>

namespace treadle {

void drop_unused_captures(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  auto formal = static_cast<size_t>(node.num_formal_inputs);
  std::vector<ValueId> captured(node.inputs.begin() + node.num_formal_inputs, node.inputs.end());
  std::vector<bool> used(captured.size(), false);
  for (const Body& body : node.bodies)
    for (const auto& capture : body.captures) used[static_cast<size_t>(capture.second)] = true;
  std::vector<int> moved(captured.size(), -1);
  std::vector<ValueId> kept;
  for (size_t position = 0; position < captured.size(); ++position) {
    if (!used[position]) continue;
    moved[position] = static_cast<int>(kept.size());
    kept.push_back(captured[position]);
  }
  if (kept.size() == captured.size()) return;
  for (size_t i = 0; i < captured.size(); ++i) graph.set_input(id, formal + i, i < kept.size() ? kept[i] : kNoValue);
  node.inputs.resize(formal + kept.size());
  for (Body& body : node.bodies)
    for (auto& capture : body.captures) capture.second = moved[static_cast<size_t>(capture.second)];
}

}  // namespace treadle
