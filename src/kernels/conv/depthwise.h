// Depthwise convolution: one input channel per group.
#pragma once

#include "kernels/conv/conv.h"

namespace treadle::kernels {

/// Windows of more taps are left to the product.
inline constexpr int64_t kMaxDepthwiseTaps = 343;

size_t depthwise_slot_bytes(const Window& window);

/// conv for p.C == p.group and at most kMaxDepthwiseTaps taps. Scratch: depthwise_slot_bytes times ScratchSlots::count(max_threads, p.N *
/// p.C).
void depthwise(const ConvParams& p, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue, void* scratch,
               int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
