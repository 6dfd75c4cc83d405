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

/// Where gradients of an activation behind the normalisation pass: y = (x - mean) * factor + bias decides, which lies in no memory.
struct BatchNormGate {
  enum class Passes : uint8_t { always, above, within };  ///< y > low; not (y < low or y > high)
  Passes passes = Passes::always;
  float low = 0, high = 0;
  const float *factor = nullptr, *bias = nullptr;  ///< [C]
};

/// dy[rows, C]: in memory, or computed row by row.
class GradientRows {
 public:
  virtual ~GradientRows() = default;
  /// @param buffer  [count, C], for what is computed; may be the memory that the rows are computed of
  virtual const float* rows(int64_t first, int64_t count, float* buffer) const = 0;
};

/// Of the gradient below. @param is_computed  the rows are, and each may be asked for twice
size_t batch_norm_gradient_nhwc_scratch_bytes(int64_t rows, int64_t C, bool is_computed);

/// dx, and dscale[C], dbias[C] (null: not wanted), of y = (x - mean) * inverse * scale + bias where mean and inverse are of x. dx may be x,
/// or memory that rows of dy lie in or are computed of.
/// @param inverse  1 / sqrt(variance + epsilon)
void batch_norm_gradient_nhwc(int64_t rows, int64_t C, const GradientRows& dy, bool is_computed, const BatchNormGate& gate, const float* x,
                              const float* scale, const float* mean, const float* inverse, float* dx, float* dscale, float* dbias,
                              void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
