// The axes over which BroadcastGrad sums, for kernels of every device.
#pragma once

#include <cstdint>

#include "treadle/shape.h"

namespace treadle::ops {

/// The axes of `wide` along which `narrow` was broadcast to it, a bit each. @throws Error(invalid_argument) if it cannot have been
uint32_t broadcast_axes(const Shape& wide, const Shape& narrow);

}  // namespace treadle::ops
