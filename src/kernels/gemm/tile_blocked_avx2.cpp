// Compiled for AVX2; called only if has_byte_instructions() reports it. Gives the same bits as AVX512-VNNI.
#include "kernels/gemm/gemm_blocked_bytes.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define TREADLE_AVX2 __attribute__((target("avx2,fma")))

namespace treadle::kernels {
namespace {

struct Job {
  const BlockedBytesRows& A;
  const PackedBlocked& B;
  int64_t panel;
  float* C;
};

// Prepares codes for the byte product, which multiplies unsigned by signed bytes and adds two products in 16 bits without overflow.
template <int kBits>
struct Codes;

// Adds 8 to codes, so that they are unsigned: two products with a byte of A are at most 3,810, and eight such pairs fit 16 bits.
template <>
struct Codes<4> {
  static constexpr int kSteps = 2, kMiddle = 8, kPerWord = 8, kWordsAtOnce = 4;
  __m256i bytes[kSteps];
  TREADLE_AVX2 void load(const uint32_t* words) {
    const __m256i read = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    const __m256i nibbles = _mm256_set1_epi32(0x0F0F0F0F), middle = _mm256_set1_epi32(0x08080808);
    bytes[0] = _mm256_xor_si256(_mm256_and_si256(read, nibbles), middle);
    bytes[1] = _mm256_xor_si256(_mm256_and_si256(_mm256_srli_epi32(read, 4), nibbles), middle);
  }
  TREADLE_AVX2 __m256i times(int step, __m256i a) const { return _mm256_maddubs_epi16(bytes[step], a); }
};

// Takes the magnitudes of codes, and moves their signs to the bytes of A, none of which is -128. Two products are at most 32,512.
template <>
struct Codes<8> {
  static constexpr int kSteps = 1, kMiddle = 0, kPerWord = 4, kWordsAtOnce = 1;
  __m256i codes, magnitudes;
  TREADLE_AVX2 void load(const uint32_t* words) {
    codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    magnitudes = _mm256_abs_epi8(codes);
  }
  TREADLE_AVX2 __m256i times(int, __m256i a) const { return _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(a, codes)); }
};

// Sums the products of `words` words (at most kWordsAtOnce), beginning with word `first`, in 16 bits; adds the result to the 32-bit sums.
template <int kBits, int kRows, int kVectors>
TREADLE_AVX2 inline void add_words(const Job& job, int64_t row, const uint32_t* codes, int64_t first, int64_t words,
                                   __m256i (&sums)[kRows][kVectors]) {
  const int8_t* a = job.A.codes + row * job.A.depth;
  __m256i halves[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) halves[r][v] = _mm256_setzero_si256();
  for (int64_t w = first; w < first + words; ++w)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Codes<kBits> weights;
      weights.load(codes + w * 64 + 8 * v);
#pragma GCC unroll 2
      for (int step = 0; step < Codes<kBits>::kSteps; ++step)
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          float four;
          std::memcpy(&four, a + r * job.A.depth + (w * Codes<kBits>::kSteps + step) * 4, sizeof four);
          halves[r][v] = _mm256_add_epi16(halves[r][v], weights.times(step, _mm256_castps_si256(_mm256_set1_ps(four))));
        }
    }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_add_epi32(sums[r][v], _mm256_madd_epi16(halves[r][v], _mm256_set1_epi16(1)));
}

template <int kBits, int kRows, int kVectors>
TREADLE_AVX2 void tile(const Job& job, int64_t row, int64_t column) {
  constexpr int64_t kWords = Codes<kBits>::kWordsAtOnce;
  const BlockedShape& s = job.B.shape;
  const int64_t blocks = s.blocks(), words = (s.K + Codes<kBits>::kPerWord - 1) / Codes<kBits>::kPerWord;
  const int64_t block_words = s.block_size / Codes<kBits>::kPerWord, scale_at = job.panel * blocks * 64 + column;
  const uint32_t* codes = job.B.codes + job.panel * words * 64 + column;
  __m256 totals[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) totals[r][v] = _mm256_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b) {
    __m256i sums[kRows][kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_set1_epi32(-Codes<kBits>::kMiddle * job.A.sums[(row + r) * blocks + b]);
    const int64_t end = std::min(words, (b + 1) * block_words);
    for (int64_t w = b * block_words; w < end; w += kWords)
      add_words<kBits, kRows, kVectors>(job, row, codes, w, std::min(kWords, end - w), sums);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m256 scale = _mm256_loadu_ps(job.B.scales + scale_at + b * 64 + 8 * v);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        __m256 product = _mm256_cvtepi32_ps(sums[r][v]);
        if (job.B.zeros)
          product = _mm256_fnmadd_ps(_mm256_loadu_ps(job.B.zeros + scale_at + b * 64 + 8 * v),
                                     _mm256_set1_ps(static_cast<float>(job.A.sums[(row + r) * blocks + b])), product);
        const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(job.A.scales[(row + r) * blocks + b]));
        totals[r][v] = _mm256_fmadd_ps(product, both, totals[r][v]);
      }
    }
  }
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t n = job.panel * 64 + column + 8 * v;
      const auto left = static_cast<int32_t>(std::clamp<int64_t>(s.N - n, 0, 8));
      if (left > 0) _mm256_maskstore_ps(job.C + (row + r) * s.N + n, _mm256_cmpgt_epi32(_mm256_set1_epi32(left), lanes), totals[r][v]);
    }
}

template <int kBits, int kRows>
TREADLE_AVX2 void columns(const Job& job, int64_t row) {
  constexpr int kVectors = kRows == 1 ? 4 : 2;
  const int64_t left = std::min<int64_t>(64, job.B.shape.N - job.panel * 64);
  for (int64_t column = 0; column < left; column += 8 * kVectors) tile<kBits, kRows, kVectors>(job, row, column);
}

template <int kBits>
void compute_rows(const Job& job, int64_t rows) {
  constexpr void (*kTiles[])(const Job&, int64_t) = {columns<kBits, 1>, columns<kBits, 2>, columns<kBits, 3>, columns<kBits, 4>};
  compute_in_tiles(kTiles, job, rows);
}

}  // namespace

void blocked_bytes_tile_avx2(const BlockedBytesRows& A, int64_t rows, const PackedBlocked& B, int64_t panel, float* C) {
  const Job job{A, B, panel, C};
  B.shape.bits == 4 ? compute_rows<4>(job, rows) : compute_rows<8>(job, rows);
}

}  // namespace treadle::kernels
#else

namespace treadle::kernels {
void blocked_bytes_tile_avx2(const BlockedBytesRows&, int64_t, const PackedBlocked&, int64_t, float*) {}
}  // namespace treadle::kernels
#endif
