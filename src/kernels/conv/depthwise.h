// Depthwise convolution in NCHW: one input channel per group.
#pragma once

#include "kernels/conv/conv.h"

namespace treadle::kernels {

/// Maximum number of taps. Windows with more taps use the GEMM.
inline constexpr int64_t kMaxDepthwiseTaps = 343;

size_t depthwise_slot_bytes(const Window& window);

/// Like conv(), for p.C == p.group and at most kMaxDepthwiseTaps taps. The scratch has ScratchSlots::count(max_threads, p.N * p.C) slots of
/// depthwise_slot_bytes().
void depthwise(const ConvParams& p, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue, void* scratch,
               int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
