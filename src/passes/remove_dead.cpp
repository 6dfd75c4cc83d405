// Dead nodes: those whose outputs nothing reads. A Yield hands values out, and stays.
#include <algorithm>

#include "graph/op_def.h"
#include "passes/captures.h"
#include "passes/whole_graph.h"

namespace treadle::passes {
namespace {

bool is_read(const Graph& graph, ValueId id) { return id != kNoValue && (!graph.value(id).uses.empty() || graph.is_output(id)); }

int64_t drop_unread_captures(Graph& graph, NodeId id) {
  int64_t count = 0;
  for (Body& body : graph.node(id).bodies) {
    count += static_cast<int64_t>(std::erase_if(body.captures, [&](const std::pair<ValueId, int>& capture) {
      if (is_read(*body.graph, capture.first)) return false;
      std::erase(body.graph->inputs, capture.first);
      body.graph->value(capture.first).kind = Value::Kind::computed;
      return true;
    }));
  }
  if (count > 0) drop_unused_captures(graph, id);
  return count;
}

}  // namespace

int64_t remove_dead(Graph& graph, int64_t limit) {
  int64_t count = 0;
  std::vector<NodeId> order = graph.order();
  for (auto it = order.rbegin(); it != order.rend() && count < limit; ++it) {
    const Node& node = graph.node(*it);
    bool read = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) { return is_read(graph, output); });
    if (!read && !(node.op && node.op->barrier)) {
      graph.remove_node(*it);
      ++count;
      continue;
    }
    for (Body& body : graph.node(*it).bodies) count += remove_dead(*body.graph, limit - count);
    count += drop_unread_captures(graph, *it);
  }
  return count;
}

}  // namespace treadle::passes
