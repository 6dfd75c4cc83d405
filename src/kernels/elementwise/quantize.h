// Quantisation of floats to bytes by one scale.
#pragma once

#include <cstdint>

namespace treadle::kernels {

struct FloatRange {
  float low, high;
};
/// The least and the largest of 0 and the elements; NaN is passed over. One thread.
FloatRange range_around_zero(const float* x, int64_t n);

/// y = saturate(round_to_even(x / scale) + zero); NaN gives the least code. One thread. Code is uint8_t or int8_t.
/// @param zero  an integer that is a code
template <typename Code>
void quantize_bytes(const float* x, int64_t n, float scale, float zero, Code* y);

/// y = (x - zero) * scale. One thread. Code is uint8_t or int8_t.
template <typename Code>
void dequantize_bytes(const Code* x, int64_t n, float scale, float zero, float* y);

}  // namespace treadle::kernels
