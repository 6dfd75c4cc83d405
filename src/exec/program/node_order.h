// The order in which a program runs a graph's nodes.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace treadle::exec {

/// The graph's own order, updates last, or one whose activations need fewer bytes at once; where extents are symbols, for small ones as
/// well as for large ones. A graph with extents that only a run can tell and that have no bound, or with more than kMaxReordered nodes,
/// keeps its own. Nothing moves across a Yield.
/// @param saves_memory  false: its own in any case.
std::vector<NodeId> choose_order(const Graph& graph, bool saves_memory = true);
inline constexpr size_t kMaxReordered = 4000;

/// An optimiser's step, whose results may be bound to the memory of what it reads: in every order it comes after all that is none and reads
/// none, so that a run which fails before it has changed nothing.
bool is_update(const Node& node);

}  // namespace treadle::exec
