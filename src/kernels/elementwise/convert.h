// Bulk conversions between float32 and other types.
#pragma once

#include <cstdint>

#include "core/values/float_types.h"

namespace treadle::kernels {

/// Convert dst[i] = src[i], exactly, on the calling thread. No alignment is needed.
void widen(const Float16* src, float* dst, int64_t n);
void widen(const BFloat16* src, float* dst, int64_t n);
/// Convert dst[i] = src[i], rounded to nearest even; NaN stays NaN. dst must not overlap src.
void narrow(const float* src, Float16* dst, int64_t n);
void narrow(const float* src, BFloat16* dst, int64_t n);
/// Sets dst[i] to the lowest byte of src[i] truncated to an integer; 0 for NaN and for numbers that int64 cannot represent.
void narrow(const float* src, uint8_t* dst, int64_t n);
/// Converts dst[i] = src[i], rounded to nearest even.
void to_float(const int64_t* src, float* dst, int64_t n);
/// Converts dst[i] = src[i], truncated towards zero. NaN and numbers out of range become the lowest int64, as on x86.
void to_int64(const float* src, int64_t* dst, int64_t n);

}  // namespace treadle::kernels
