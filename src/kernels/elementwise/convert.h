// Bulk conversions between float32 and other types.
#pragma once

#include <cstdint>

#include "core/values/float_types.h"

namespace treadle::kernels {

/// dst[i] = src[i], exact, on the calling thread. No alignment needed.
void widen(const Float16* src, float* dst, int64_t n);
void widen(const BFloat16* src, float* dst, int64_t n);
/// dst[i] = src[i], rounded to nearest even; keeps NaN. dst must not overlap src.
void narrow(const float* src, Float16* dst, int64_t n);
void narrow(const float* src, BFloat16* dst, int64_t n);
/// Lowest byte of src[i], truncated towards zero; 0 if int64 cannot hold it, and for NaN.
void narrow(const float* src, uint8_t* dst, int64_t n);
/// dst[i] = src[i], rounded to nearest even.
void to_float(const int64_t* src, float* dst, int64_t n);
/// dst[i] = src[i], truncated towards zero. NaN and numbers out of range become the lowest int64, as on x86.
void to_int64(const float* src, int64_t* dst, int64_t n);

}  // namespace treadle::kernels
