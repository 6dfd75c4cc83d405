// Replaces the exporter in a library that has none.
#include "onnx/export.h"
#include "treadle/error.h"

namespace treadle::onnx {

ModelDef export_model(const Graph&, const ModelDef*, const ExportOptions&) {
  throw Error(ErrorCode::not_implemented, "writing a graph: this is a build for training from artifacts, which has no exporter");
}

}  // namespace treadle::onnx
