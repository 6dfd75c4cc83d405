// BatchNormalization in training, and its gradient, in NHWC: x[rows, C].
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads/thread_pool.h"

namespace treadle::kernels {

size_t batch_norm_nhwc_scratch_bytes(int64_t rows, int64_t C);

/// Computes mean[C] and the biased variance[C] of x over all rows. Blocks of rows are summed without cancellation and merged in double. The
/// result does not depend on the number of threads.
void moments_nhwc(int64_t rows, int64_t C, const float* x, float* mean, float* variance, void* scratch, ThreadPool* pool);

/// The gradient of an activation after the normalization: dy passes where y = (x - mean) * factor + bias is in the activation's range, and
/// is 0 elsewhere. y is recomputed, as it is not stored.
struct BatchNormGate {
  enum class Passes : uint8_t { always, above, within };  ///< above: dy passes if y > low; within: if not (y < low or y > high)
  Passes passes = Passes::always;
  float low = 0, high = 0;
  const float *factor = nullptr, *bias = nullptr;  ///< arrays with the shape [C]
};

/// Provides the rows of dy, which are in memory or computed on demand.
class GradientRows {
 public:
  virtual ~GradientRows() = default;
  /// @param buffer  [count, C], receives computed rows; may be the memory of an operand from which they are computed
  virtual const float* rows(int64_t first, int64_t count, float* buffer) const = 0;
};

/// Returns the scratch bytes of batch_norm_gradient_nhwc(). @param is_computed  true: rows of dy are computed on demand, each up to two
/// times
size_t batch_norm_gradient_nhwc_scratch_bytes(int64_t rows, int64_t C, bool is_computed);

/// Computes dx, dscale[C] and dbias[C] (each may be null) of y = (x - mean) * inverse * scale + bias, where mean and inverse depend on x.
/// dx may be x, dy, or an operand from which dy is computed.
/// @param inverse  1 / sqrt(variance + epsilon)
void batch_norm_gradient_nhwc(int64_t rows, int64_t C, const GradientRows& dy, bool is_computed, const BatchNormGate& gate, const float* x,
                              const float* scale, const float* mean, const float* inverse, float* dx, float* dscale, float* dbias,
                              void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
