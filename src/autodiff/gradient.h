// Reverse-mode differentiation: adds to a graph the nodes that compute gradients, from the operators' own rules.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace treadle::autodiff {

/// Appends the backward pass of `ys` to the graph.
/// @param ys       values to differentiate; floating-point tensors.
/// @param grad_ys  the gradient that flows into each (a value of y's shape); kNoValue stands for ones.
/// @param xs       values whose gradients are wanted.
/// @param until    a node: neither it nor what stands behind it is looked at; kNoNode: all are
/// @return one value per x; kNoValue where no y depends on it.
/// The graph must be upgraded and inferred; fused and layout operators have no gradient. Several uses of a value are summed.
/// @throws Error(not_implemented) naming every node on the way that has no gradient rule.
std::vector<ValueId> add_gradients(Graph& graph, std::span<const ValueId> ys, std::span<const ValueId> grad_ys, std::span<const ValueId> xs,
                                   NodeId until = kNoNode);

/// Whether gradients may flow into a value: a tensor of floats, a sequence or an optional of them. The gradient of an optional is that of
/// what it holds, that of a sequence the sequence of its elements' gradients.
bool holds_floats(const Type& type);

}  // namespace treadle::autodiff
