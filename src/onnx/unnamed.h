// Handles nodes that have no name in the model.
#pragma once

#include "onnx/model_def.h"

namespace treadle::onnx {

/// Removes names that the importer made: it gives a node without a name the name of its first output. @param original  the model from which
/// `exported` was read
void remove_made_names(GraphDef& exported, const GraphDef& original);

}  // namespace treadle::onnx
