// The order in which a program runs a graph's nodes.
#pragma once

#include <unordered_set>
#include <vector>

#include "graph/graph.h"

namespace treadle::exec {

/// The graph's own order, updates last, or one whose activations need fewer bytes at once; where extents are symbols, for small ones as
/// well as for large ones. A graph with extents that only a run can tell and that have no bound, or with more than kMaxReordered nodes,
/// keeps its own. Nothing moves across a Yield.
/// @param saves_memory  false: its own in any case.
/// @param forward       nodes of the forward part: updates that read what others make come as soon as they can, when nobody reads any more
///                      what they write over. Null: all updates come last.
std::vector<NodeId> choose_order(const Graph& graph, bool saves_memory = true, const std::unordered_set<const Node*>* forward = nullptr);
inline constexpr size_t kMaxReordered = 4000;

/// An optimiser's step, whose results may be bound to the memory of what it reads. Where updates come last, a run that fails before them
/// has changed nothing.
bool is_update(const Node& node);

/// Whether the update reads what nodes outside of the forward part make: a gradient. Running statistics do not.
bool is_behind(const Graph& graph, const Node& update, const std::unordered_set<const Node*>& forward);

}  // namespace treadle::exec
