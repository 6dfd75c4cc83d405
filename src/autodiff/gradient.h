// Reverse-mode differentiation: adds the nodes that compute gradients to a graph, using the operators' gradient rules.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace treadle::autodiff {

/// Appends the backward pass of `ys` to the graph. Many fused and layout operators have no gradient rule.
/// @param ys       values to differentiate; floating-point tensors.
/// @param grad_ys  the gradient of each y, with y's shape; kNoValue means ones.
/// @param xs       values whose gradients are wanted.
/// @param until    this node and all after it are ignored; kNoNode: the whole graph is differentiated
/// @pre the graph is upgraded and inferred
/// @return for each x, the sum of the gradients of all its uses; kNoValue if no y depends on the x
/// @throws Error(not_implemented) naming every node between ys and xs that has no gradient rule.
std::vector<ValueId> add_gradients(Graph& graph, std::span<const ValueId> ys, std::span<const ValueId> grad_ys, std::span<const ValueId> xs,
                                   NodeId until = kNoNode);

/// True if gradients may flow into a value of this type: a tensor of floats, or a sequence or optional of such tensors. A sequence's
/// gradient is the sequence of its elements' gradients; an optional's gradient is its content's.
bool holds_floats(const Type& type);

}  // namespace treadle::autodiff
