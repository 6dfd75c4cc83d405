// Quantisation of floats to bytes by one scale.
#pragma once

#include <cstdint>

namespace treadle::kernels {

struct FloatRange {
  float low, high;
};
/// The least and the largest of 0 and the elements; NaN is passed over. One thread.
FloatRange range_around_zero(const float* x, int64_t n);

/// y = saturate(round_to_even(x / scale) + zero); NaN gives 0. One thread.
/// @param zero  an integer in [0, 255]
void quantize_bytes(const float* x, int64_t n, float scale, float zero, uint8_t* y);

}  // namespace treadle::kernels
