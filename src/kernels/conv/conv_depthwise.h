// A convolution and the depthwise one that reads it, with channels innermost, a few rows at a time: the widest images of mobile networks
// lie behind their first convolution and in the middle of their blocks, and are never written to memory as a whole.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/conv/nhwc.h"

namespace treadle::kernels {

/// depthwise: C = M = group channels, its window's input is the image between the two; first: C channels of x, M those of the image, one
/// group, two spatial axes.
struct ConvDepthwise {
  ConvParams first, depthwise;
  int max_threads;
};

/// A convolution's packed weights (nhwc_pack, direct or depthwise) and what follows its sums. The first one has no residual.
struct ConvStage {
  const float* packed;
  ConvEpilogue epilogue;
};

size_t conv_depthwise_scratch_bytes(const ConvDepthwise& params);

/// x[N, high, wide, first.C], or planes; y[N, out, depthwise.C]: what the two give one after the other, bit for bit where the weights of
/// the first are few. No residual may be y.
void conv_depthwise(const ConvDepthwise& params, const float* x, const ConvStage& first, const ConvStage& depthwise, float* y,
                    void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
