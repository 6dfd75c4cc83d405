// Derives from operands and attributes the numbers with which all devices compute GridSample nodes.
#pragma once

#include "graph/kernel.h"
#include "kernels/image/grid_sample.h"

namespace treadle::ops {

/// @throws Error(invalid_argument) if operands or attributes are inconsistent
kernels::GridSampleParams bind_grid_sample(const BindContext& c);

}  // namespace treadle::ops
