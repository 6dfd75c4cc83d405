// Derives the numbers with which all devices compute FusedRotary nodes.
#pragma once

#include "graph/kernel.h"
#include "kernels/attention/rotary.h"

namespace treadle::ops {

/// @throws Error(invalid_argument) if the shapes of the operands are inconsistent
kernels::RotaryParams bind_fused_rotary(const BindContext& c);

}  // namespace treadle::ops
