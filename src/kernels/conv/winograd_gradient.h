// Gradient of 3x3 weights, NHWC, by Winograd's F(4x4, 3x3): differentiates the convolution of winograd.h, with the same points: dW = G^T
// [sum over tiles of (A dY A^T) (B^T x B)] G. Takes 36 products instead of 144 for a tile of 16 outputs.
#pragma once

#include <cstddef>

#include "kernels/conv/nhwc.h"

namespace treadle::kernels {

/// Returns true if the method applies, its estimated time is less than the direct method's, and it is within the limits of `choice`.
bool winograd_gradient_pays(const ConvParams& params, const ConvChoice& choice);

size_t winograd_gradient_scratch_bytes(const ConvParams& params);
/// Computes dw[M, C, 3, 3] from dy[N, high, wide, M] and x[N, in, C]. The order of the sums depends on the sizes only.
/// @return false if dw has a number that is not finite. Then compute it directly, as the transforms spread an infinity as NaN
bool winograd_gradient(const ConvParams& params, const float* dy, const float* x, float* dw, void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
