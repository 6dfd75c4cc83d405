// Gradients of quantization and of products of quantized numbers. Rounding is treated as the identity (straight-through estimator).
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
