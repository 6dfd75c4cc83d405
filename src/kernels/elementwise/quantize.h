// Quantization of floats to bytes with one scale for all.
#pragma once

#include <cstdint>

namespace treadle::kernels {

struct FloatRange {
  float low, high;
};
/// Returns the minimum and maximum of 0 and the elements, ignoring NaN. Runs on the calling thread.
FloatRange range_around_zero(const float* x, int64_t n);

/// Computes y = saturate(round_to_even(x / scale) + zero), on the calling thread; NaN gives the lowest code. Code is uint8_t or int8_t.
/// @param zero  an integer in the range of Code
template <typename Code>
void quantize_bytes(const float* x, int64_t n, float scale, float zero, Code* y);

/// Computes y = (x - zero) * scale, on the calling thread. Code is uint8_t or int8_t.
template <typename Code>
void dequantize_bytes(const Code* x, int64_t n, float scale, float zero, float* y);

}  // namespace treadle::kernels
