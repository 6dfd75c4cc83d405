// Conversion of sums to bytes, 16 columns at a time. For files compiled for AVX512-VNNI.
#pragma once

#include <immintrin.h>

#include "kernels/conv/byte_tile.h"

#define TREADLE_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

namespace treadle::kernels::avx512 {

TREADLE_VNNI inline __m512i rounded(__m512 value) {
  const __m512 bound = _mm512_set1_ps(1e6F);
  return _mm512_cvtps_epi32(_mm512_min_ps(bound, _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), bound), value)));
}
TREADLE_VNNI inline __m512i widened(__m128i bytes, bool is_signed) {
  return is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
}
TREADLE_VNNI inline __m512 floats_or_zero(const float* values, int64_t column) {
  return values ? _mm512_loadu_ps(values + column) : _mm512_setzero_ps();
}

// ByteAddition for 16 columns.
struct Addition {
  __m512i least, largest, residual_zero;  // the range of the codes before, relative to their zero point
  __m512 factor, addend, residual_factor;
  const uint8_t* residual;
  bool residual_signed;

  TREADLE_VNNI void set(const ByteAddition& a, int32_t zero_before, bool signed_before, int64_t column) {
    least = _mm512_set1_epi32((signed_before ? -128 : 0) - zero_before), largest = _mm512_add_epi32(least, _mm512_set1_epi32(255));
    factor = _mm512_set1_ps(a.factor), addend = floats_or_zero(a.addends, column);
    residual = a.residual, residual_signed = a.residual_signed;
    residual_zero = _mm512_set1_epi32(a.residual_zero), residual_factor = _mm512_set1_ps(a.residual_factor);
  }
  TREADLE_VNNI __m512i added(__m512i codes, int64_t place, int64_t count) const {
    const __m512i inside = _mm512_max_epi32(least, _mm512_min_epi32(largest, codes));
    __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(inside), factor, addend);
    if (residual) {
      const __m128i bytes = count >= 16 ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(residual + place))
                                        : _mm_maskz_loadu_epi8(static_cast<__mmask16>((1U << count) - 1), residual + place);
      const __m512i other = _mm512_sub_epi32(widened(bytes, residual_signed), residual_zero);
      sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(other), residual_factor, sum);
    }
    return rounded(sum);
  }
};

// Converts sums of 16 columns to bytes as ByteEpilogue says.
struct Scaling {
  __m512i offset, zero;
  __m512 scale, addend;
  int num_additions;
  bool is_signed;
  Addition additions[kMaxByteAdditions];

  TREADLE_VNNI Scaling(const ByteEpilogue& e, int64_t column)
      : offset(_mm512_loadu_si512(e.offsets + column)),
        scale(_mm512_loadu_ps(e.scales + column)),
        addend(floats_or_zero(e.addends, column)),
        num_additions(e.num_additions),
        is_signed(e.is_signed) {
    int32_t last_zero = e.zero;
    for (int i = 0; i < num_additions; ++i) {
      additions[i].set(e.additions[i], last_zero, is_signed, column);
      last_zero = e.additions[i].zero, is_signed = e.additions[i].is_signed;
    }
    zero = _mm512_set1_epi32(last_zero);
  }
  /// @param place  index of the first result among all; @param count  number of results to read residuals for
  TREADLE_VNNI __m128i to_bytes(__m512i sums, int64_t place, int64_t count) const {
    __m512i codes = rounded(_mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(sums, offset)), scale, addend));
    for (int i = 0; i < num_additions; ++i) codes = additions[i].added(codes, place, count);
    const __m512i shifted = _mm512_add_epi32(codes, zero);
    if (is_signed) return _mm512_cvtsepi32_epi8(shifted);
    return _mm512_cvtusepi32_epi8(_mm512_max_epi32(shifted, _mm512_setzero_si512()));
  }
};

TREADLE_VNNI inline void store_bytes(__m128i bytes, int64_t count, uint8_t* dst) {
  if (count >= 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), bytes);
  } else if (count > 0) {
    _mm_mask_storeu_epi8(dst, static_cast<__mmask16>((1U << count) - 1), bytes);
  }
}

TREADLE_VNNI inline void store_sums(__m512i sums, const ByteEpilogue& e, int64_t column, int64_t count, int32_t* dst) {
  const __m512i total = _mm512_add_epi32(sums, _mm512_loadu_si512(e.offsets + column));
  if (count > 0) _mm512_mask_storeu_epi32(dst, count >= 16 ? __mmask16{0xFFFF} : static_cast<__mmask16>((1U << count) - 1), total);
}

}  // namespace treadle::kernels::avx512
