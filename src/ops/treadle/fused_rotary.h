// The call that a FusedRotary node describes, for kernels of every device.
#pragma once

#include "graph/kernel.h"
#include "kernels/attention/rotary.h"

namespace treadle::ops {

/// @throws Error(invalid_argument) if the operands' shapes do not fit together
kernels::RotaryParams bind_fused_rotary(const BindContext& c);

}  // namespace treadle::ops
