// Differentiation of an operator of the treadle domain by the ONNX operators that it consists of.
#pragma once

#include <span>
#include <vector>

#include "graph/graph.h"

namespace treadle::autodiff {

/// For a node whose operator has OpDef::differentiated or OpDef::write_function and no gradient rule, as kernels that compute gradients:
/// appends its parts beside the node, which stays as it is, and their backward pass.
/// @param grads   of the node's outputs; kNoValue where nothing flows back
/// @param wanted  which operands' gradients are wanted
/// @return a gradient per operand, kNoValue for those that are not wanted
std::vector<ValueId> differentiate_parts(Graph& graph, NodeId node, std::span<const ValueId> grads, const std::vector<bool>& wanted);

}  // namespace treadle::autodiff
