// Rotary position embedding of float32 heads: pairs of features are turned by angles whose cosines and sines are given.
#pragma once

#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/attention/attention.h"

namespace treadle::kernels {

struct RotaryParams {
  int64_t batch = 0, heads = 0, length = 0, size = 0;
  HeadStrides x, y;
  HeadStrides cos, sin;      ///< 0 where they are the same for all
  bool interleaved = false;  ///< pairs are neighbours; otherwise they are half of the size apart
};

/// With r the other feature of the pair, negated for the first of the two: y = x * cos + r * sin. Every feature has its own cosine and
/// sine. y may be x where their strides are the same.
void rotary(const RotaryParams& params, const float* x, const float* cos, const float* sin, float* y, ThreadPool* pool);

}  // namespace treadle::kernels
