// Replaces the ONNX exporter in a reduced library without one: its functions throw.
#include "onnx/export.h"
#include "treadle/error.h"

namespace treadle::onnx {

ModelDef export_model(const Graph&, const ModelDef*, const ExportOptions&) {
  throw Error(ErrorCode::not_implemented, "writing a graph: this is a build for training from artifacts, which has no exporter");
}

}  // namespace treadle::onnx
