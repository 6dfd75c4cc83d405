// Derives the parameters of FusedRotary from a node's operands and attributes. The kernels of all devices use them.
#pragma once

#include "graph/kernel.h"
#include "kernels/attention/rotary.h"

namespace treadle::ops {

/// @throws Error(invalid_argument) if the shapes of the operands are inconsistent
kernels::RotaryParams bind_fused_rotary(const BindContext& c);

}  // namespace treadle::ops
