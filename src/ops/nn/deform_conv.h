// Derives what kernels of every device need to compute a DeformConv node.
#pragma once

#include "graph/kernel.h"
#include "kernels/conv/deform.h"

namespace treadle::ops {

/// @throws Error(invalid_argument) if operands or attributes do not fit, Error(not_implemented) for an image of another rank than 4
kernels::DeformParams bind_deform_conv(const BindContext& c);

}  // namespace treadle::ops
