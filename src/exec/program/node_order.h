// Chooses the order in which a program runs a graph's nodes.
#pragma once

#include <unordered_set>
#include <vector>

#include "graph/graph.h"

namespace treadle::exec {

/// Returns the graph's own order with the updates last, or another order that needs fewer activation bytes at once. Where extents are
/// symbols, the other order must not be worse for small and for large values of them. The graph's own order is kept if an extent has no
/// known bound, or if there are more than kMaxReordered nodes. No node moves across a Yield.
/// @param saves_memory  false: always keep the graph's own order.
/// @param forward       the nodes of the forward part of a training step. Updates that read a value made outside of it, a gradient, then
///                      run as soon as no later node reads the memory that they overwrite. Null: all updates come last.
std::vector<NodeId> choose_order(const Graph& graph, bool saves_memory = true, const std::unordered_set<const Node*>* forward = nullptr);
inline constexpr size_t kMaxReordered = 4000;

/// Returns true for an optimizer's node, whose results may be bound to the memory of its inputs. While updates come last, a run that fails
/// before them has changed no parameter.
bool is_update(const Node& node);

/// Returns true if the update reads a gradient, which is a value made outside of the forward part. Updates of running statistics do not.
bool is_behind(const Graph& graph, const Node& update, const std::unordered_set<const Node*>& forward);

}  // namespace treadle::exec
