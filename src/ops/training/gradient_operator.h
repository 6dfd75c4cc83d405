// Declares ai.onnx.preview.training.Gradient, which autodiff/ implements with the gradient rules of the operators.
#pragma once

#include "graph/op_def.h"

namespace treadle::ops {

OpDef gradient_operator();

}  // namespace treadle::ops
