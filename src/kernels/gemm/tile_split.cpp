// Compiled for AVX512-BF16; called only if cpu_info() reports AMX.
#include "kernels/gemm/tile_split.h"

#include <algorithm>
#include <bit>

#include "core/base/cpu_info.h"
#include "kernels/movement/transpose_plane.h"

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns about operands that its own intrinsics leave undefined on purpose (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#endif

namespace treadle::kernels {

#if defined(__x86_64__)

#define TREADLE_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

namespace {

constexpr int64_t kWords = kSplitRows * kSplitTerms / 2;  // number of words of one tile
constexpr int64_t kLanes = 16;

TREADLE_BF16 inline __mmask16 first(int64_t count) { return static_cast<__mmask16>((1U << std::clamp<int64_t>(count, 0, kLanes)) - 1); }
TREADLE_BF16 inline __m512 load(const float* from, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
TREADLE_BF16 inline __m512i magnitude(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF)); }

/// Rounds 32 numbers to bfloat16: 16 from `low`, then 16 from `high`.
TREADLE_BF16 inline __m512i rounded(__m512 low, __m512 high) {
  return __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(high, low));  // not std::bit_cast, which is compiled for another target
}

/// Splits rows of up to 32 terms into bfloat16 parts. Each row becomes a row of a tile of each part.
TREADLE_BF16 Magnitude split_rows(const float* rows, int64_t ld, int64_t count, int64_t terms, uint16_t* to) {
  const __mmask16 low = first(terms), high = first(terms - kLanes);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t r = 0; r < kSplitRows; ++r) {
    __m512 x0 = _mm512_setzero_ps(), x1 = x0;
    if (r < count) x0 = load(rows + r * ld, low), x1 = load(rows + r * ld + kLanes, high);
    largest = _mm512_max_epu32(largest, _mm512_max_epu32(magnitude(x0), magnitude(x1)));
    uint16_t* part = to + r * kSplitTerms;
    for (int i = 0; i < 3; ++i, part += 2 * kWords) {
      const __m512i near = rounded(x0, x1);
      _mm512_store_si512(part, near);
      x0 = _mm512_sub_ps(x0, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(near)), 16)));
      x1 = _mm512_sub_ps(x1, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(near, 1)), 16)));
    }
  }
  return _mm512_reduce_max_epu32(largest);
}

/// Splits rows of up to 16 columns into bfloat16 parts. Each two rows become one tile row of 16 pairs.
TREADLE_BF16 Magnitude split_pairs(const float* rows, int64_t ld, int64_t terms, int64_t columns, uint16_t* to) {
  alignas(64) static constexpr uint16_t kInterleave[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                           8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i interleave = _mm512_load_si512(kInterleave);
  const __mmask16 lanes = first(columns);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t pair = 0; pair < kSplitTerms / 2; ++pair) {
    __m512 even = _mm512_setzero_ps(), odd = even;
    if (2 * pair < terms) even = load(rows + 2 * pair * ld, lanes);
    if (2 * pair + 1 < terms) odd = load(rows + (2 * pair + 1) * ld, lanes);
    largest = _mm512_max_epu32(largest, _mm512_max_epu32(magnitude(even), magnitude(odd)));
    uint16_t* part = to + pair * 2 * kLanes;
    for (int i = 0; i < 3; ++i, part += 2 * kWords) {
      const __m512i near = _mm512_permutexvar_epi16(interleave, rounded(even, odd));
      _mm512_store_si512(part, near);
      even = _mm512_sub_ps(even, _mm512_castsi512_ps(_mm512_slli_epi32(near, 16)));
      odd = _mm512_sub_ps(odd, _mm512_castsi512_ps(_mm512_and_si512(near, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U)))));
    }
  }
  return _mm512_reduce_max_epu32(largest);
}

// Transposes three tiles of 32-bit words, each a pair of terms: turns A's layout (rows of terms) into B's (rows of pairs), or back.
void turn(const uint16_t* from, uint16_t* to) {
  for (int64_t i = 0; i < 3; ++i)
    transpose_plane(kSplitRows, kSplitTerms / 2, reinterpret_cast<const uint32_t*>(from) + i * kWords, kSplitTerms / 2,
                    reinterpret_cast<uint32_t*>(to) + i * kWords, kSplitRows);
}

/// Calls split(), which writes tiles in the layout of the other matrix, and transposes these tiles.
template <typename Split>
Magnitude split_turned(const Split& split, uint16_t* to) {
  alignas(64) uint16_t tiles[kSplitTiles];
  const Magnitude largest = split(tiles);
  turn(tiles, to);
  return largest;
}

}  // namespace

Magnitude split_a(const float* A, int64_t a_row, int64_t a_col, int64_t rows, int64_t terms, uint16_t* to) {
  if (a_col == 1) return split_rows(A, a_row, rows, terms, to);
  return split_turned([&](uint16_t* tiles) { return split_pairs(A, a_col, terms, rows, tiles); }, to);
}

Magnitude split_b(const float* B, int64_t b_row, int64_t b_col, int64_t terms, int64_t columns, uint16_t* to) {
  if (b_col == 1) return split_pairs(B, b_row, terms, columns, to);
  return split_turned([&](uint16_t* tiles) { return split_rows(B, b_col, columns, terms, tiles); }, to);
}

TREADLE_BF16 Magnitude largest_magnitude(const float* data, int64_t ld, int64_t rows, int64_t columns) {
  __m512i largest[4] = {};
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = data + r * ld;
    int64_t n = 0;
    for (; n + 4 * kLanes <= columns; n += 4 * kLanes) {
      for (int i = 0; i < 4; ++i) largest[i] = _mm512_max_epu32(largest[i], magnitude(_mm512_loadu_ps(row + n + i * kLanes)));
    }
    for (; n < columns; n += kLanes) largest[0] = _mm512_max_epu32(largest[0], magnitude(load(row + n, first(columns - n))));
  }
  return _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_max_epu32(largest[0], largest[1]), _mm512_max_epu32(largest[2], largest[3])));
}

#else

Magnitude split_a(const float*, int64_t, int64_t, int64_t, int64_t, uint16_t*) { return 0; }
Magnitude split_b(const float*, int64_t, int64_t, int64_t, int64_t, uint16_t*) { return 0; }
Magnitude largest_magnitude(const float*, int64_t, int64_t, int64_t) { return 0; }

#endif

float number_of_b(const uint16_t* tiles, int64_t term, int64_t column) {
  const uint16_t* part = tiles + term / 2 * 2 * kSplitRows + 2 * column + term % 2;
  const auto number = [&](int64_t i) { return std::bit_cast<float>(static_cast<uint32_t>(part[i * kSplitRows * kSplitTerms]) << 16); };
  return number(0) + (number(1) + number(2));
}

bool has_split_tiles() { return cpu_info().features.amx_bf16 && cpu_info().features.avx512_bf16; }

bool have_parts(Magnitude largest) {
  constexpr float kLargest = 0x1p30F;
  return std::bit_cast<float>(largest) < kLargest;  // this comparison is false for NaN
}

bool can_split(Magnitude largest_of_a, Magnitude largest_of_b) {
  // Splitting a number has an error of up to 2^-126, which is then multiplied by at most the other matrix's largest magnitude. Within this
  // bound, the error is below 2^-50 of the product of the largest magnitudes.
  constexpr float kLeastProduct = 0x1p-40F;
  const float a = std::bit_cast<float>(largest_of_a), b = std::bit_cast<float>(largest_of_b);
  return have_parts(largest_of_a) && have_parts(largest_of_b) && (a == 0 || b == 0 || a * b >= kLeastProduct);
}

}  // namespace treadle::kernels
