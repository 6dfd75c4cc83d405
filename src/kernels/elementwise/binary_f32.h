// Binary arithmetic on two float32 arrays with broadcasting.
#pragma once

#include "core/threads/thread_pool.h"
#include "kernels/elementwise/broadcast.h"

namespace treadle::kernels {

enum class Binary : uint8_t {
  add,
  sub,
  mul,
  div,
  max,  // max and min return NaN if either operand is NaN, as in NumPy
  min,
  pow,   // computes the C library's powf, with an error of 1 ulp
  fmod,  // computes the C library's fmodf: exact, with a's sign
};

/// Computes dst = a op b. dst may be one of the inputs if that input is not broadcast.
void binary_f32(Binary op, const BroadcastPlan<2>& plan, const float* a, const float* b, float* dst, ThreadPool* pool);

/// Computes dst[i] = a[i * stride_a] op b[i * stride_b] for i in [0, n), on the calling thread.
void binary_f32(Binary op, const float* a, int64_t stride_a, const float* b, int64_t stride_b, float* dst, int64_t n);

}  // namespace treadle::kernels
