// Types in the syntax of ONNX's operator constraints.
#pragma once

#include <string>

#include "graph/type.h"

namespace treadle {

/// Returns "float", "int64" etc.: the dtype's name except for two dtypes.
std::string onnx_type_name(DType dtype);
/// Returns "tensor(float)", "seq(map(int64,tensor(float)))" etc.; empty if the type is unknown.
std::string type_text(const Type& type);

}  // namespace treadle
