// Instance normalization and group normalization of NHWC images.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads/thread_pool.h"

namespace treadle::kernels {

struct NhwcNorm {
  int64_t N = 0, pixels = 0, C = 0;
  int64_t groups = 1;                ///< number of groups of adjacent channels that share statistics; C for instance normalization
  int64_t x_pixel = 0, y_pixel = 0;  ///< strides of pixels in floats
  float epsilon = 1e-5F;
  float low = 0;  ///< lower clamp of the results; -infinity: no clamp
};

size_t norm_nhwc_scratch_bytes(const NhwcNorm& norm);

/// Computes y[n, pixel, c] = max(low, (x - mean) / sqrt(variance + epsilon) * scale[c] + bias[c]), where mean and variance are those of
/// channel c's group in image n. Blocks of pixels are summed without cancellation and merged in double. y may be x.
void norm_nhwc(const NhwcNorm& norm, const float* x, const float* scale, const float* bias, float* y, void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
