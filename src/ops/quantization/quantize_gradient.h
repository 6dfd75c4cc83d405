// Gradients of quantisation and of products of quantised numbers, which pass straight through the rounding.
#pragma once

#include "ops/gradients.h"

namespace treadle::ops::gradients {

Gradients quantize(GradientContext& g);
Gradients dequantize(GradientContext& g);
Gradients dynamic_quantize(GradientContext& g);
Gradients matmul_integer(GradientContext& g);
Gradients conv_integer(GradientContext& g);
Gradients qlinear_matmul(GradientContext& g);
Gradients qlinear_conv(GradientContext& g);

}  // namespace treadle::ops::gradients
