// 1x1 convolution of an image whose channels are scaled first, as in squeeze-and-excite blocks (Hu et al., 2018): y = (x * s) * W.
#pragma once

#include <cstddef>

#include "core/threads/thread_pool.h"
#include "kernels/conv/conv.h"

namespace treadle::kernels {

size_t scaled_pointwise_scratch_bytes(const ConvParams& params);
/// Scales the weights or the image, whichever is smaller; usually the image is larger, and is then read only once. The window must be 1x1
/// with stride 1, no pads and one group.
/// @param x  [N, pixels, C]
/// @param scale  [N, C]
/// @param packed  weights packed by nhwc_pack() for NhwcMethod::direct
/// @param y  [N, pixels, M]; the epilogue's residual must not be y
void scaled_pointwise(const ConvParams& params, const float* x, const float* scale, const float* packed, float* y,
                      const ConvEpilogue& epilogue, void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
