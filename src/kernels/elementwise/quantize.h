// Quantisation of floats to bytes by one scale, and back.
#pragma once

#include <cstdint>

namespace treadle::kernels {

struct FloatRange {
  float low, high;
};
/// The least and the largest of 0 and the elements; NaN is passed over. One thread.
FloatRange range_around_zero(const float* x, int64_t n);

/// y = saturate(round_to_even(x / scale) + zero); NaN gives the lowest code. One thread.
/// @param zero  an integer of y's type
void quantize_bytes(const float* x, int64_t n, float scale, float zero, uint8_t* y);
void quantize_bytes(const float* x, int64_t n, float scale, float zero, int8_t* y);

/// y = (x - zero) * scale. One thread.
void dequantize_bytes(const uint8_t* x, int64_t n, float scale, float zero, float* y);
void dequantize_bytes(const int8_t* x, int64_t n, float scale, float zero, float* y);

}  // namespace treadle::kernels
