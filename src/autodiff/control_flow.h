// Differentiates the control-flow operators If, Loop and Scan, and their bodies.
#pragma once

#include <span>
#include <vector>

#include "graph/graph.h"

namespace treadle::autodiff {

/// Appends the node that computes the gradients of a control-flow node's operands: an If of the branches' gradients, or a Scan that goes
/// backwards over the iterations. The forward node gets additional outputs, the states of every iteration; the backward node recomputes the
/// bodies from them.
/// @param grads   gradients of the node's outputs; kNoValue for an output without one
/// @param wanted  which operands need a gradient, including captures of the bodies
/// @return one gradient per operand; kNoValue for operands that need none
/// @throws Error(not_implemented) for random operators in a nested body, as recomputing would draw other numbers.
std::vector<ValueId> differentiate_bodies(Graph& graph, NodeId node, std::span<const ValueId> grads, const std::vector<bool>& wanted);

}  // namespace treadle::autodiff
