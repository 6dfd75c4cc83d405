// Rotary position embedding of float32 heads: rotates pairs of features by angles given as cosines and sines.
#pragma once

#include <cstdint>

#include "core/threads/thread_pool.h"
#include "kernels/attention/attention.h"

namespace treadle::kernels {

struct RotaryParams {
  int64_t batch = 0, heads = 0, length = 0, size = 0;
  HeadStrides x, y;
  HeadStrides cos, sin;      ///< strides, which are 0 for broadcast axes
  bool interleaved = false;  ///< true: a pair is two adjacent features; false: two features half the size apart
};

/// Computes y = x * cos + r * sin, where r is the other feature of the pair, negated for the first of the two. Each feature has a separate
/// cosine and sine. y may be x if both have the same strides.
void rotary(const RotaryParams& params, const float* x, const float* cos, const float* sin, float* y, ThreadPool* pool);

}  // namespace treadle::kernels
