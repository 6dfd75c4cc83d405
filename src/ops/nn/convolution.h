// What Conv and its integer forms share.
#pragma once

#include <vector>

#include "graph/infer.h"
#include "graph/kernel.h"
#include "graph/op_def.h"
#include "kernels/conv/conv.h"

namespace treadle::ops {

/// Which inputs are the image, the weights and the bias (-1: there is none).
struct ConvolutionInputs {
  int x = 0, w = 1, b = 2;
};

/// @throws Error(invalid_argument) for shapes that do not fit together.
void infer_convolution(InferContext& c, const ConvolutionInputs& at, DType result);
kernels::ConvParams bind_convolution(const BindContext& c, const ConvolutionInputs& at);
/// The same with the result's shape given.
kernels::ConvParams bind_convolution(const BindContext& c, const ConvolutionInputs& at, const Shape& result);

}  // namespace treadle::ops
