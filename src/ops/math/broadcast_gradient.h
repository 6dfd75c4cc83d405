// Finds the axes over which BroadcastGrad sums. Kernels of all devices use this function.
#pragma once

#include <cstdint>

#include "treadle/shape.h"

namespace treadle::ops {

/// Returns a bit mask of the axes along which `narrow` was broadcast to the shape `wide`.
/// @throws Error(invalid_argument) if `narrow` does not broadcast to `wide`
uint32_t broadcast_axes(const Shape& wide, const Shape& narrow);

}  // namespace treadle::ops
