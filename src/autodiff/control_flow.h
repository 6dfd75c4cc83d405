// Differentiation through the bodies of If, Loop and Scan.
#pragma once

#include <span>
#include <vector>

#include "graph/graph.h"

namespace treadle::autodiff {

/// Appends the node that computes the gradients of a control flow node's operands: an If of the branches' gradients, or a Scan that goes
/// back over the iterations, whose states the forward node then keeps. Bodies are computed again.
/// @param grads   of the node's outputs; kNoValue where nothing flows back
/// @param wanted  which operands' gradients are wanted, captures of the bodies included
/// @return a gradient per operand, kNoValue for those that are not wanted
/// @throws Error(not_implemented) for a body that draws random numbers: it would draw others.
std::vector<ValueId> differentiate_bodies(Graph& graph, NodeId node, std::span<const ValueId> grads, const std::vector<bool>& wanted);

}  // namespace treadle::autodiff
