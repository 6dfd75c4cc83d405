// Derives from operands and attributes the numbers with which all devices compute DeformConv nodes.
#pragma once

#include "graph/kernel.h"
#include "kernels/conv/deform.h"

namespace treadle::ops {

/// @throws Error(invalid_argument) if operands or attributes are inconsistent, Error(not_implemented) if the rank of the image is not 4
kernels::DeformParams bind_deform_conv(const BindContext& c);

}  // namespace treadle::ops
