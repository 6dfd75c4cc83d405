// Pools and per-channel scaling in float32 NHWC.
#pragma once

#include <cstdint>

#include "core/threads/thread_pool.h"
#include "kernels/conv/window.h"

namespace treadle::kernels {

enum class NhwcPool : uint8_t { max, average };

/// The strides of pixels in floats: C, or more if x or y is part of a wider image.
struct PixelSteps {
  int64_t x, y;
};

/// Pools x[N, in, C] to y[N, out, C] over one or two spatial axes (window.kernel[0] is 1). A mean is over the elements in the input or,
/// with include_pad, in the input and its pads. NaN counts as the largest number.
void pool_nhwc(NhwcPool kind, const Window& window, int64_t N, int64_t C, bool include_pad, PixelSteps steps, const float* x, float* y,
               ThreadPool* pool);

/// Sets y[n, c] to the mean of x[n, pixel, c] over all pixels, which are `step` floats apart. Sums `line` pixels at a time and then adds
/// these sums, so that rounding errors grow less with the image.
void mean_nhwc(int64_t N, int64_t pixels, int64_t line, int64_t C, int64_t step, const float* x, float* y, void* scratch, ThreadPool* pool);
size_t mean_nhwc_scratch_bytes(int64_t N, int64_t pixels, int64_t line, int64_t C);

/// Sets y[i, c] = max(x[i, c] * scale[c] + shift[c], low) for i in [0, rows).
void affine_nhwc(int64_t rows, int64_t C, PixelSteps steps, const float* x, const float* scale, const float* shift, float low, float* y,
                 ThreadPool* pool);

}  // namespace treadle::kernels
