// Chooses the order in which a program runs a graph's nodes.
#pragma once

#include <unordered_set>
#include <vector>

#include "graph/graph.h"

namespace treadle::exec {

/// Returns the graph's own order with the updates last, or another order that needs fewer activation bytes at once. If extents are symbols,
/// the other order must not be worse for small or large values. The graph's own order is kept if an extent has no known bound, or if there
/// are more than kMaxReordered nodes. No node moves across a Yield.
/// @param saves_memory  false: always keep the graph's own order.
/// @param forward  nodes of a training step's forward part. If given, updates that read a gradient (a value made by other nodes) run once
/// no
///                 later node reads the memory that they overwrite. Null: all updates come last.
std::vector<NodeId> choose_order(const Graph& graph, bool saves_memory = true, const std::unordered_set<const Node*>* forward = nullptr);
inline constexpr size_t kMaxReordered = 4000;

/// Returns true for an optimizer's node, whose results may be bound to the memory of its inputs. As long as updates come last, a run that
/// fails before the first update has changed no parameter.
bool is_update(const Node& node);

/// Returns true if the update reads a gradient, that is a value made outside of the forward part. Updates of running statistics do not.
bool is_behind(const Graph& graph, const Node& update, const std::unordered_set<const Node*>& forward);

}  // namespace treadle::exec
