// Depthwise convolution: one input channel per group.
#pragma once

#include "kernels/conv/conv.h"

namespace treadle::kernels {

size_t depthwise_slot_bytes(const Window& window);

/// conv for p.C == p.group. Scratch: depthwise_slot_bytes times ScratchSlots::count(max_threads, p.N * p.C).
void depthwise(const ConvParams& p, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue, void* scratch,
               int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
