#include "onnx/model_def.h"

namespace treadle::onnx {

AttributeDef::AttributeDef() = default;
AttributeDef::~AttributeDef() = default;
AttributeDef::AttributeDef(const AttributeDef&) = default;
AttributeDef::AttributeDef(AttributeDef&&) noexcept = default;
AttributeDef& AttributeDef::operator=(const AttributeDef&) = default;
AttributeDef& AttributeDef::operator=(AttributeDef&&) noexcept = default;

}  // namespace treadle::onnx
