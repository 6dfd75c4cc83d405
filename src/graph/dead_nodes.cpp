#include "graph/dead_nodes.h"

#include <algorithm>
#include <vector>

#include "graph/captures.h"
#include "graph/op_def.h"
#include "graph/rewriter.h"

namespace treadle {
namespace {

bool is_read(const Graph& graph, ValueId id) { return id != kNoValue && (!graph.value(id).uses.empty() || graph.is_output(id)); }

bool drop_unread_captures(Graph& graph, NodeId id) {
  size_t dropped = 0;
  for (Body& body : graph.node(id).bodies) {
    dropped += std::erase_if(body.captures, [&](const std::pair<ValueId, int>& capture) {
      if (is_read(*body.graph, capture.first)) return false;
      std::erase(body.graph->inputs, capture.first);
      body.graph->value(capture.first).kind = Value::Kind::computed;
      return true;
    });
  }
  if (dropped > 0) drop_unused_captures(graph, id);
  return dropped > 0;
}

void remove_dead_in(Rewriter& rewriter) {
  Graph& graph = rewriter.graph();
  const std::vector<NodeId> order = graph.order();
  for (auto it = order.rbegin(); it != order.rend() && !rewriter.is_at_limit(); ++it) {
    const Node& node = graph.node(*it);
    if (is_dead(graph, node))
      rewriter.change([&] { return graph.remove_node(*it), true; });
    else if (!node.bodies.empty())
      rewriter.change([&] { return drop_unread_captures(graph, *it); });
  }
}

}  // namespace

bool is_dead(const Graph& graph, const Node& node) {
  return !(node.op && node.op->barrier) &&
         std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) { return is_read(graph, output); });
}

// Visits bodies first: a value that only a dead node of a body reads need not be captured, nor computed in the enclosing graph.
int64_t remove_dead_nodes(Graph& graph, int64_t limit) { return Rewriter(graph, limit).for_each_graph_inside_out(remove_dead_in); }

}  // namespace treadle
