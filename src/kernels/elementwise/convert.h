// Between float32 and other types, in bulk.
#pragma once

#include <cstdint>

#include "core/float_types.h"

namespace treadle::kernels {

/// dst[i] = src[i]. Exact. One thread; no alignment needed.
void widen(const Float16* src, float* dst, int64_t n);
void widen(const BFloat16* src, float* dst, int64_t n);
/// dst[i] = src[i], rounded to nearest even; NaN stays NaN. dst must not overlap src.
void narrow(const float* src, Float16* dst, int64_t n);
void narrow(const float* src, BFloat16* dst, int64_t n);
/// The lowest byte of src[i], cut off towards zero; 0 for what int64 does not hold, and for NaN.
void narrow(const float* src, uint8_t* dst, int64_t n);
/// dst[i] = src[i], rounded to nearest even.
void to_float(const int64_t* src, float* dst, int64_t n);
/// dst[i] = src[i], towards zero. What int64 does not hold, and NaN, becomes its lowest value, as x86 does it.
void to_int64(const float* src, int64_t* dst, int64_t n);

}  // namespace treadle::kernels
