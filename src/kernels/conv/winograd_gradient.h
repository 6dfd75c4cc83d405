// The gradient of 3x3 weights, channels innermost, by Winograd's F(4x4, 3x3): the derivative of the convolution that winograd.h computes,
// dW = G^T [sum over tiles of (A dY A^T) (B^T x B)] G, with its points: 36 products instead of 144 for a tile of 16 outputs.
#pragma once

#include <cstddef>

#include "kernels/conv/nhwc.h"

namespace treadle::kernels {

/// Whether it applies, is estimated to be faster than the direct way, and the choice allows it.
bool winograd_gradient_pays(const ConvParams& params, const ConvChoice& choice);

size_t winograd_gradient_scratch_bytes(const ConvParams& params);
/// dw[M, C, 3, 3] of dy[N, high, wide, M] and x[N, in, C]. The order of the sums depends on sizes only.
/// @return false if not all of it is finite: the transforms turn an infinity into NaN for its whole neighbourhood
bool winograd_gradient(const ConvParams& params, const float* dy, const float* x, float* dw, void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
