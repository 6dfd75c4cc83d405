// Dead nodes: those whose outputs nothing reads.
#pragma once

#include <cstdint>

#include "graph/graph.h"

namespace treadle {

/// True if nothing reads an output of the node. What hands values out (Yield) stays even if nobody reads what comes back.
bool is_dead(const Graph& graph, const Node& node);

/// Removes dead nodes, in bodies too, and captures that no body reads any more. Returns how many changes that took, at most `limit`.
int64_t remove_dead_nodes(Graph& graph, int64_t limit = INT64_MAX);

}  // namespace treadle
