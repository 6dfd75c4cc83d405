// The gradient of a convolution with respect to its weights. The gradient with respect to its input is a transposed convolution (conv.h).
#pragma once

#include <cstddef>

#include "kernels/conv/conv.h"

namespace treadle::kernels {

/// Returns the scratch bytes of conv_grad_weights(). T is float or double.
template <typename T>
size_t conv_grad_weights_scratch_bytes(const ConvParams& params, int max_threads);

/// Computes dw[M, C / group, kernel] from dy[N, M, out] and x[N, C, in]: the sum, over the images in order, of the product of dy (M x out)
/// and the image's columns (out x C*kernel).
/// @param scratch  conv_grad_weights_scratch_bytes<T>(params, max_threads), aligned to 64 bytes
template <typename T>
void conv_grad_weights(const ConvParams& params, const T* dy, const T* x, T* dw, void* scratch, int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
