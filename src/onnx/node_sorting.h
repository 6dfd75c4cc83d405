// Sorts the nodes of a model file topologically.
#pragma once

#include <string>
#include <vector>

#include "onnx/model_def.h"

namespace treadle::onnx {

/// Returns the nodes in an order in which values are computed before they are read. Files should have such an order; some do not.
/// @throws Error(invalid_model) for a cycle
std::vector<const NodeDef*> in_order(std::vector<const NodeDef*> nodes);

/// Returns a description of a node for error messages: `Conv node "layer1/conv" (ai.onnx)`
std::string describe_def(const NodeDef& def);

}  // namespace treadle::onnx
