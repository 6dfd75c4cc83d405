// Helpers for Conv and its integer forms.
#pragma once

#include <vector>

#include "graph/infer.h"
#include "graph/kernel.h"
#include "graph/op_def.h"
#include "kernels/conv/conv.h"

namespace treadle::ops {

/// The indices of image, weights and bias among the inputs; -1: the operator has no bias.
struct ConvolutionInputs {
  int x = 0, w = 1, b = 2;
};

/// Infers the output. @throws Error(invalid_argument) if the shapes do not fit together.
void infer_convolution(InferContext& c, const ConvolutionInputs& at, DType result);
kernels::ConvParams bind_convolution(const BindContext& c, const ConvolutionInputs& at);
/// Returns the parameters of a convolution. The shape of the result is known already.
kernels::ConvParams bind_convolution(const BindContext& c, const ConvolutionInputs& at, const Shape& result);
/// Returns the parameters of a convolution's gradient: X, W and Y are the convolution's. @throws Error(invalid_argument) if the shapes do
/// not fit one convolution, as the operators may come from a file.
kernels::ConvParams bind_conv_gradient(const BindContext& c, const Shape& x, const Shape& w, const Shape& y);
/// Returns the parameters of a ConvTranspose, described as a convolution from Y to X.
kernels::ConvParams bind_conv_transpose(const BindContext& c);

}  // namespace treadle::ops
