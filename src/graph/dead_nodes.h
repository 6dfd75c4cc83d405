// Finds and removes dead nodes: nodes whose outputs are not read.
#pragma once

#include <cstdint>

#include "graph/graph.h"

namespace treadle {

/// Returns true if none of the node's outputs is read. Barriers (Yield), which hand values to the caller, are never dead.
bool is_dead(const Graph& graph, const Node& node);

/// Removes dead nodes, including those in bodies, and captures that bodies no longer read. Stops after `limit` changes. Returns the number
/// of changes.
int64_t remove_dead_nodes(Graph& graph, int64_t limit = INT64_MAX);

}  // namespace treadle
