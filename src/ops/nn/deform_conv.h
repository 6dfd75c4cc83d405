// Derives the parameters of DeformConv from a node's operands and attributes. The kernels of all devices use them.
#pragma once

#include "graph/kernel.h"
#include "kernels/conv/deform.h"

namespace treadle::ops {

/// @throws Error(invalid_argument) if operands or attributes are inconsistent, Error(not_implemented) if the rank of the image is not 4
kernels::DeformParams bind_deform_conv(const BindContext& c);

}  // namespace treadle::ops
