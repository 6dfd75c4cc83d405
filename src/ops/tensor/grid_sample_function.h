// Writes GridSampleGrad with ONNX's operators.
#pragma once

#include "graph/function_body.h"

namespace treadle::ops {

/// Implements OpDef::write_function of GridSampleGrad (X, grid, dY; dX, dgrid).
void write_grid_sample_grad(FunctionBody& body);

}  // namespace treadle::ops
