// Declares ai.onnx.preview.training.Gradient, which autodiff/ implements by the operators' gradient rules.
#pragma once

#include "graph/op_def.h"

namespace treadle::ops {

OpDef gradient_operator();

}  // namespace treadle::ops
