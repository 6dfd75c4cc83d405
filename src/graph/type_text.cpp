#include "graph/type_text.h"

#include <fmt/format.h>

namespace treadle {

std::string onnx_type_name(DType dtype) {
  if (dtype == DType::float32) return "float";
  if (dtype == DType::float64) return "double";
  return std::string(name_of(dtype));
}

std::string type_text(const Type& type) {
  const std::string element = type.element ? type_text(*type.element) : std::string();
  switch (type.kind) {
    case Type::Kind::tensor: return type.dtype == DType::undefined ? "" : fmt::format("tensor({})", onnx_type_name(type.dtype));
    case Type::Kind::sparse_tensor:
      return type.dtype == DType::undefined ? "" : fmt::format("sparse_tensor({})", onnx_type_name(type.dtype));
    case Type::Kind::sequence: return element.empty() ? "" : fmt::format("seq({})", element);
    case Type::Kind::optional: return element.empty() ? "" : fmt::format("optional({})", element);
    case Type::Kind::map: return fmt::format("map({},tensor({}))", onnx_type_name(type.key_dtype), onnx_type_name(type.dtype));
    case Type::Kind::unknown: break;
  }
  return "";
}

}  // namespace treadle
