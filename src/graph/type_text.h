// Types in the syntax of ONNX's operator constraints.
#pragma once

#include <string>

#include "graph/type.h"

namespace treadle {

/// Returns the name that ONNX uses: "float", "int64" etc. All but two are the dtype's own name.
std::string onnx_type_name(DType dtype);
/// Returns "tensor(float)", "seq(map(int64,tensor(float)))" etc.; empty if the type is unknown.
std::string type_text(const Type& type);

}  // namespace treadle
