// A 1x1 convolution of an image whose channels are scaled first, as squeeze-and-excite blocks do (Hu et al., 2018): y = (x * s) * W.
#pragma once

#include <cstddef>

#include "core/thread_pool.h"
#include "kernels/conv/conv.h"

namespace treadle::kernels {

size_t scaled_pointwise_scratch_bytes(const ConvParams& params);
/// The window is 1x1 with strides of 1 and no pads, in one group. Scales whichever has fewer floats, an image or the weights: most images
/// are larger, and are then read once only.
/// @param x, scale  [N, pixels, C] and [N, C]
/// @param packed  by nhwc_pack for NhwcMethod::direct
/// @param y  [N, pixels, M]; the epilogue's residual must not be y
void scaled_pointwise(const ConvParams& params, const float* x, const float* scale, const float* packed, float* y,
                      const ConvEpilogue& epilogue, void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
