// Helpers for Conv and for the convolutions of integers.
#pragma once

#include <vector>

#include "graph/infer.h"
#include "graph/kernel.h"
#include "graph/op_def.h"
#include "kernels/conv/conv.h"

namespace treadle::ops {

/// The indices of the inputs for image, weights and bias; -1 for b if the operator has no bias.
struct ConvolutionInputs {
  int x = 0, w = 1, b = 2;
};

/// Infers the shape of output 0. @throws Error(invalid_argument) if the shapes are inconsistent.
void infer_convolution(InferContext& c, const ConvolutionInputs& at, DType result);
kernels::ConvParams bind_convolution(const BindContext& c, const ConvolutionInputs& at);
/// Like the function above, if the shape of the result is known already.
kernels::ConvParams bind_convolution(const BindContext& c, const ConvolutionInputs& at, const Shape& result);
/// Returns the parameters of a convolution for its gradient. x, w and y are the shapes of that convolution. @throws Error(invalid_argument)
/// if the three shapes are inconsistent, since the operators may come from a file.
kernels::ConvParams bind_conv_gradient(const BindContext& c, const Shape& x, const Shape& w, const Shape& y);
/// Returns the parameters of a ConvTranspose, which is described as a convolution from Y to X.
kernels::ConvParams bind_conv_transpose(const BindContext& c);

}  // namespace treadle::ops
