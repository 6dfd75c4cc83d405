// Fuses a convolution with the depthwise convolution that reads its result, in NHWC, a few rows at a time. The image between them, often
// the widest of a mobile network, is thus never written to memory as a whole.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads/thread_pool.h"
#include "kernels/conv/nhwc.h"

namespace treadle::kernels {

/// The two convolutions. `depthwise` has C = M = group, and its input is the intermediate image. `first` maps the C channels of x to the M
/// channels of the intermediate image; it has one group and two spatial axes.
struct ConvDepthwise {
  ConvParams first, depthwise;
  int max_threads;
};

/// The packed weights of one of the two convolutions (nhwc_pack, direct or depthwise) and its epilogue. The first convolution has no
/// residual.
struct ConvStage {
  const float* packed;
  ConvEpilogue epilogue;
};

size_t conv_depthwise_scratch_bytes(const ConvDepthwise& params);

/// Computes y[N, out, depthwise.C] from x[N, high, wide, first.C] (or NCHW). Equals the two separate convolutions, bit for bit if the first
/// has few weights. The residual must not be y.
void conv_depthwise(const ConvDepthwise& params, const float* x, const ConvStage& first, const ConvStage& depthwise, float* y,
                    void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
