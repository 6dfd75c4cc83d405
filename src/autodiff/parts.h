// Differentiates an operator of the treadle domain that has no gradient rule, by expressing it in operators that have one.
#pragma once

#include <span>
#include <vector>

#include "graph/graph.h"

namespace treadle::autodiff {

/// For operators that have no gradient rule, but have OpDef::differentiated or OpDef::write_function. Examples are operators that compute
/// gradients. Appends operators that compute the same outputs, and their backward pass. Does not change the node itself.
/// @param grads   gradients of the node's outputs; kNoValue for an output without one
/// @param wanted  which operands need a gradient
/// @return one gradient per operand; kNoValue for operands that need none
std::vector<ValueId> differentiate_parts(Graph& graph, NodeId node, std::span<const ValueId> grads, const std::vector<bool>& wanted);

}  // namespace treadle::autodiff
