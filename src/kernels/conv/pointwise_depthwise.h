// A pointwise convolution and the depthwise one that reads it, with channels innermost, a few rows at a time: the widest images of mobile
// networks lie between these two, and are never written to memory as a whole.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/conv/nhwc.h"

namespace treadle::kernels {

/// depthwise: C = M = group channels, its window's input is the image between the two; pointwise: C channels of x, M those of the image.
struct PointwiseDepthwise {
  ConvParams pointwise, depthwise;
  int max_threads;
};

/// A convolution's packed weights (nhwc_pack, direct or depthwise) and what follows its sums. The pointwise one has no residual.
struct ConvStage {
  const float* packed;
  ConvEpilogue epilogue;
};

size_t pointwise_depthwise_scratch_bytes(const PointwiseDepthwise& params);

/// x[N, high, wide, pointwise.C], y[N, out, depthwise.C]: bit for bit what the two give one after the other. No residual may be y.
void pointwise_depthwise(const PointwiseDepthwise& params, const float* x, const ConvStage& pointwise, const ConvStage& depthwise, float* y,
                         void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
