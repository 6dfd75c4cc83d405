// ai.onnx.preview.training.Gradient, whose meaning is in autodiff/: it applies the operators' rules.
#pragma once

#include "graph/op_def.h"

namespace treadle::ops {

OpDef gradient_operator();

}  // namespace treadle::ops
