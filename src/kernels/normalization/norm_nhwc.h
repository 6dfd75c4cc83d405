// Instance and group normalisation of images with channels innermost.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"

namespace treadle::kernels {

struct NhwcNorm {
  int64_t N = 0, pixels = 0, C = 0;
  int64_t groups = 1;                ///< channels that lie side by side share their statistics; C groups for instance normalisation
  int64_t x_pixel = 0, y_pixel = 0;  ///< floats from pixel to pixel
  float epsilon = 1e-5F;
  float low = 0;  ///< results below it become it; -infinity for none
};

size_t norm_nhwc_scratch_bytes(const NhwcNorm& norm);

/// y[n, pixel, c] = max(low, (x - mean) / sqrt(variance + epsilon) * scale[c] + bias[c]), with mean and variance of the image's group that
/// c belongs to. Statistics are taken of blocks of pixels, the variance without cancellation, and joined in double. y may be x.
void norm_nhwc(const NhwcNorm& norm, const float* x, const float* scale, const float* bias, float* y, void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
