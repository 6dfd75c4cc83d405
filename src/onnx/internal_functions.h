// Operators of the domain "treadle" in terms of ONNX's: the bodies of the local functions that stand for them in a file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "onnx/model_def.h"

namespace treadle::onnx {

/// The lowest opset of ai.onnx whose operators the body of this node is made of.
int internal_function_opset(const Node& node);

/// The body for one node: its attributes stand in the body as values.
/// @param inputs, outputs  the function's names for the node's operands; "" for one that is absent.
/// @throws Error(not_implemented) for an operator that ONNX's cannot express.
std::vector<NodeDef> internal_function(const Graph& graph, const Node& node, std::span<const std::string> inputs,
                                       std::span<const std::string> outputs);
/// What the body depends on besides the node's attributes and which operands it has: nodes that differ in it have a function each.
std::string internal_function_variant(const Graph& graph, const Node& node);

}  // namespace treadle::onnx
