// Dot products of unsigned and signed bytes, for files compiled for AVX2. They use AVX-VNNI if the caller states that the CPU has it.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define TREADLE_AVX2 __attribute__((target("avx2")))

namespace treadle::kernels {

/// Maximum number of rows of add_byte_quads: accumulators, columns of B and a broadcast of A must fit 16 registers.
template <bool kVnni>
inline constexpr int kMaxByteRows = kVnni ? 6 : 4;

/// Adds to `sum` the dot products of kRows rows of A with 16 columns of B. Each of the `quads` steps multiplies four consecutive k; the
/// bytes of B for step i begin at b + i * b_step.
template <bool kVnni, int kRows>
TREADLE_AVX2 inline void add_byte_quads(const uint8_t* a, int64_t lda, const int8_t* b, int64_t b_step, int64_t quads,
                                        __m256i (&sum)[kRows][2]) {
  const __m256i low_bytes = _mm256_set1_epi16(0xFF);
  for (int64_t k = 0; k < quads; ++k, a += 4, b += b_step) {
    __m256i columns[2], even[2], odd[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      columns[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + 32 * v));
      if constexpr (!kVnni) {
        even[v] = _mm256_srai_epi16(_mm256_slli_epi16(columns[v], 8), 8);
        odd[v] = _mm256_srai_epi16(columns[v], 8);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      int32_t four;
      std::memcpy(&four, a + r * lda, sizeof four);
      const __m256i bytes = _mm256_set1_epi32(four);
      if constexpr (kVnni) {
        // Inline assembly, because a function's target attribute cannot depend on kVnni.
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum[r][v]) : "x"(bytes), "x"(columns[v]));
      } else {
        // AVX2's byte product (vpmaddubsw) adds two products in 16 bits and may saturate. So bytes are widened to 16 bits and summed in 32.
        const __m256i a_even = _mm256_and_si256(bytes, low_bytes), a_odd = _mm256_srli_epi16(bytes, 8);
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          const __m256i pairs = _mm256_add_epi32(_mm256_madd_epi16(a_even, even[v]), _mm256_madd_epi16(a_odd, odd[v]));
          sum[r][v] = _mm256_add_epi32(sum[r][v], pairs);
        }
      }
    }
  }
}

}  // namespace treadle::kernels
