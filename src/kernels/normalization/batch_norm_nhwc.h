// BatchNormalization in training, and its gradient, with channels innermost: x[rows, C].
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"

namespace treadle::kernels {

size_t batch_norm_nhwc_scratch_bytes(int64_t rows, int64_t C);

/// mean[C] and variance[C] (over all rows, not unbiased) of x. Taken of blocks of rows, without cancellation, and joined in double; the
/// same for any number of threads.
void moments_nhwc(int64_t rows, int64_t C, const float* x, float* mean, float* variance, void* scratch, ThreadPool* pool);

/// y[r, c] = (x[r, c] - mean[c]) * scale[c] + bias[c]
void normalize_nhwc(int64_t rows, int64_t C, const float* x, const float* mean, const float* scale, const float* bias, float* y,
                    ThreadPool* pool);

/// dx, and dscale[C], dbias[C] (null: not wanted), of y = (x - mean) * inverse * scale + bias where mean and inverse are of x.
/// @param inverse  1 / sqrt(variance + epsilon)
void batch_norm_gradient_nhwc(int64_t rows, int64_t C, const float* dy, const float* x, const float* scale, const float* mean,
                              const float* inverse, float* dx, float* dscale, float* dbias, void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
