// Derives the parameters of GridSample from a node's operands and attributes. The kernels of all devices use them.
#pragma once

#include "graph/kernel.h"
#include "kernels/image/grid_sample.h"

namespace treadle::ops {

/// @throws Error(invalid_argument) if operands or attributes are inconsistent
kernels::GridSampleParams bind_grid_sample(const BindContext& c);

}  // namespace treadle::ops
