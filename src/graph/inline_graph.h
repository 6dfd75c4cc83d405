// Inlines the nodes of one graph into another.
#pragma once

#include <map>
#include <vector>

#include "graph/graph.h"

namespace treadle {

/// Copies the nodes of `inside` into `graph`, before a node or at the end. Does not infer types; use infer_node().
/// @param copies  maps values of `inside` to replacements. It must contain the inputs; any other value that is read must be a constant or
///     computed in `inside`. Receives the copies of all values that were needed.
/// @param before  kNoNode: at the end
/// @return the new nodes, in order
/// @throws Error(invalid_model) for a value that nothing computes
std::vector<NodeId> inline_graph(Graph& graph, const Graph& inside, std::map<ValueId, ValueId>& copies, NodeId before = kNoNode);

}  // namespace treadle
