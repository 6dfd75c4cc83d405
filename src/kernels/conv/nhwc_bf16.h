// Convolution with channels innermost, computed in bfloat16 or float16 with sums in float32: the direct way of nhwc.h, from an image that
// is rounded (and padded, if need be) first. A 1x1 convolution is a plain product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/conv/conv.h"
#include "kernels/conv/nhwc.h"
#include "kernels/gemm/gemm_bf16.h"

namespace treadle::kernels {

/// Whether it can be done: the runs of a window must be of even length, so that pairs lie in one run. Does not depend on the image.
bool nhwc_bf16_fits(const ConvParams& params);
/// Whether it can, and is faster than float32 by this way: one bfloat16 product is, also than Winograd's; three are not, and depthwise
/// convolutions wait for memory. float16 rounds what bfloat16 does.
bool nhwc_bf16_pays(const ConvParams& params, NhwcMethod method, Bf16Form form);

/// Words of the packed weights.
int64_t nhwc_bf16_packed_size(const ConvParams& params, Bf16Form form);
/// @param weights  [M, C / group, kernel], at any address
/// @param packed  nhwc_bf16_packed_size(params, form) words, aligned to 64 bytes
void nhwc_bf16_pack(const ConvParams& params, Bf16Form form, const float* weights, uint32_t* packed);

size_t nhwc_bf16_scratch_bytes(const ConvParams& params, Bf16Form form);
/// @param epilogue  its residual must not be y
/// @param scratch  nhwc_bf16_scratch_bytes(params, form), aligned to 64 bytes
/// @param emulated  do without the processor's bfloat16 products
void nhwc_bf16_conv(const ConvParams& params, Bf16Form form, const float* x, const uint32_t* packed, float* y, const ConvEpilogue& epilogue,
                    void* scratch, ThreadPool* pool, bool emulated = false);

}  // namespace treadle::kernels
