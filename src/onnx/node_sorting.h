// The order of a file's nodes.
#pragma once

#include <string>
#include <vector>

#include "onnx/model_def.h"

namespace treadle::onnx {

/// The nodes in an order in which values are made before they are read. Files should have it; some do not.
/// @throws Error(invalid_model) for a cycle.
std::vector<const NodeDef*> in_order(std::vector<const NodeDef*> nodes);

/// For errors: `Conv node "layer1/conv" (ai.onnx)`
std::string describe_def(const NodeDef& def);

}  // namespace treadle::onnx
