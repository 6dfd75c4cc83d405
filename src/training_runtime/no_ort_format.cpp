// Replaces the reader for ONNX Runtime's model format (.ort) in a reduced library, which reads ONNX files only.
#include "onnx/parse_context.h"

namespace treadle::onnx {

void parse_ort_model(ParseContext& context, std::string_view, ModelDef&) {
  context.place.fail(ErrorCode::not_implemented,
                     "a model in ONNX Runtime's format (.ort): this is a build for training from artifacts, which reads ONNX files only");
}

}  // namespace treadle::onnx
