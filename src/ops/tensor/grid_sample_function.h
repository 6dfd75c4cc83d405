// Writes GridSampleGrad as ONNX nodes.
#pragma once

#include "graph/function_body.h"

namespace treadle::ops {

/// Implements OpDef::write_function for GridSampleGrad, with the inputs X, grid, dY and the outputs dX, dgrid.
void write_grid_sample_grad(FunctionBody& body);

}  // namespace treadle::ops
