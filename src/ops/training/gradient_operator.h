// ai.onnx.preview.training.Gradient. autodiff/ implements it by the operators' gradient rules.
#pragma once

#include "graph/op_def.h"

namespace treadle::ops {

OpDef gradient_operator();

}  // namespace treadle::ops
