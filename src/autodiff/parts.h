// Differentiates an operator of the treadle domain by expressing it in ONNX operators.
#pragma once

#include <span>
#include <vector>

#include "graph/graph.h"

namespace treadle::autodiff {

/// For operators that have no gradient rule but OpDef::differentiated or OpDef::write_function, such as operators that compute gradients.
/// Appends the operators that the node consists of, and their backward pass; the node itself stays as it is.
/// @param grads   gradients of the node's outputs; kNoValue for an output without one
/// @param wanted  which operands need a gradient
/// @return a gradient per operand; kNoValue for those that need none
std::vector<ValueId> differentiate_parts(Graph& graph, NodeId node, std::span<const ValueId> grads, const std::vector<bool>& wanted);

}  // namespace treadle::autodiff
