// NHWC convolution in bfloat16 or float16 with float32 sums. It uses the direct method of nhwc.h on an image that is first rounded, and
// padded if needed. A 1x1 convolution is a plain product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads/thread_pool.h"
#include "kernels/conv/conv.h"
#include "kernels/conv/nhwc.h"
#include "kernels/gemm/gemm_bf16.h"

namespace treadle::kernels {

/// Returns true if the contiguous runs of a window have even length, so that a pair never spans two runs. Does not depend on the image.
bool nhwc_bf16_fits(const ConvParams& params);
/// Returns true if the convolution fits and is faster than `method` in float32. One bfloat16 product is faster even than Winograd's method;
/// three are faster only than the direct method. Depthwise convolutions never gain, as memory limits their speed.
bool nhwc_bf16_pays(const ConvParams& params, NhwcMethod method, Bf16Form form);

/// Returns the number of 32-bit words of the packed weights.
int64_t nhwc_bf16_packed_size(const ConvParams& params, Bf16Form form);
/// Packs the weights.
/// @param weights  [M, C / group, kernel]; may be unaligned
/// @param packed  nhwc_bf16_packed_size(params, form) words, aligned to 64 bytes
void nhwc_bf16_pack(const ConvParams& params, Bf16Form form, const float* weights, uint32_t* packed);

size_t nhwc_bf16_scratch_bytes(const ConvParams& params, Bf16Form form);
/// Computes the convolution.
/// @param epilogue  the residual must not be y
/// @param scratch  nhwc_bf16_scratch_bytes(params, form), aligned to 64 bytes
/// @param emulated  do not use the CPU's bfloat16 instructions
void nhwc_bf16_conv(const ConvParams& params, Bf16Form form, const float* x, const uint32_t* packed, float* y, const ConvEpilogue& epilogue,
                    void* scratch, ThreadPool* pool, bool emulated = false);

}  // namespace treadle::kernels
