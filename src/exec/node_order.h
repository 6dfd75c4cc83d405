// The order in which a program runs a graph's nodes.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace treadle::exec {

/// The graph's own order, or one whose activations need fewer bytes at once. A graph with extents that are not known, with state or with
/// more than kMaxReordered nodes keeps its own. Nothing moves across a Yield.
std::vector<NodeId> choose_order(const Graph& graph);
inline constexpr size_t kMaxReordered = 4000;

}  // namespace treadle::exec
