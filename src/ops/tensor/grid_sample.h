// Derives what kernels of every device need to compute a GridSample node.
#pragma once

#include "graph/kernel.h"
#include "kernels/image/grid_sample.h"

namespace treadle::ops {

/// @throws Error(invalid_argument) if operands or attributes do not fit
kernels::GridSampleParams bind_grid_sample(const BindContext& c);

}  // namespace treadle::ops
