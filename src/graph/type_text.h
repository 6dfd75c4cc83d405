// Types as ONNX writes them in the type strings of operators' constraints.
#pragma once

#include <string>

#include "graph/type.h"

namespace treadle {

/// "float", "int64": the dtypes' names but for two.
std::string onnx_type_name(DType dtype);
/// "tensor(float)", "seq(map(int64,tensor(float)))"; empty for a type that is not known.
std::string type_text(const Type& type);

}  // namespace treadle
