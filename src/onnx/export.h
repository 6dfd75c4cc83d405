// From a Graph back to the structs of a file.
#pragma once

#include "graph/graph.h"
#include "onnx/model_def.h"

namespace treadle::onnx {

struct ExportOptions {
  int opset = 0;  ///< of ai.onnx; 0: the lowest in which every node's meaning existed
};

/// @param original  where metadata, producer and descriptions come from; may be null.
/// @throws Error(not_implemented) naming the first node that a chosen opset cannot express.
ModelDef export_model(const Graph& graph, const ModelDef* original, const ExportOptions& options = {});

}  // namespace treadle::onnx
