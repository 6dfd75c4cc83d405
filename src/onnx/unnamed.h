// Handles nodes to which a model gives no name.
#pragma once

#include "onnx/model_def.h"

namespace treadle::onnx {

/// Removes names that the importer made: it names a node without a name after its first output. @param original  the model that `exported`
/// was read from
void remove_made_names(GraphDef& exported, const GraphDef& original);

}  // namespace treadle::onnx
