// Compiled for AVX512-VNNI; called only if has_byte_instructions() reports it.
#include "kernels/gemm/gemm_blocked_bytes.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // because GCC 12 warns about its own intrinsics
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define TREADLE_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

namespace treadle::kernels {
namespace {

struct Job {
  const BlockedBytesRows& A;
  const PackedBlocked& B;
  int64_t panel;
  float* C;
};

// Adds 8 or 128 to codes, because the instruction needs unsigned ones. The effect is later subtracted by means of the sums of A's codes.
template <int kBits>
struct Codes {
  static constexpr int kSteps = kBits == 4 ? 2 : 1, kMiddle = kBits == 4 ? 8 : 128, kPerWord = 32 / kBits;
  __m512i bytes[kSteps];
  TREADLE_VNNI void load(const uint32_t* words) {
    const __m512i read = _mm512_loadu_si512(words);
    if constexpr (kBits == 4) {
      const __m512i nibbles = _mm512_set1_epi32(0x0F0F0F0F), middle = _mm512_set1_epi32(0x08080808);
      constexpr int kAndThenXor = 0x6A;  // truth table of the ternary operation (a & b) ^ c
      bytes[0] = _mm512_ternarylogic_epi32(read, nibbles, middle, kAndThenXor);
      bytes[1] = _mm512_ternarylogic_epi32(_mm512_srli_epi32(read, 4), nibbles, middle, kAndThenXor);
    } else {
      bytes[0] = _mm512_xor_si512(read, _mm512_set1_epi32(static_cast<int>(0x80808080U)));
    }
  }
};

template <int kBits, int kRows, int kVectors>
TREADLE_VNNI void tile(const Job& job, int64_t row, int64_t column) {
  // A single row needs two accumulators to hide the latency.
  constexpr int kChains = kRows == 1 && kBits == 4 ? 2 : 1;
  const BlockedShape& s = job.B.shape;
  const int64_t blocks = s.blocks(), words = (s.K + Codes<kBits>::kPerWord - 1) / Codes<kBits>::kPerWord;
  const int64_t block_words = s.block_size / Codes<kBits>::kPerWord, scale_at = job.panel * blocks * 64 + column;
  const uint32_t* codes = job.B.codes + job.panel * words * 64 + column;
  const int8_t* a = job.A.codes + row * job.A.depth;
  __m512 totals[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) totals[r][v] = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b) {
    __m512i sums[kChains][kRows][kVectors];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512i start = _mm512_set1_epi32(-Codes<kBits>::kMiddle * job.A.sums[(row + r) * blocks + b]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[0][r][v] = start;
        if constexpr (kChains == 2) sums[1][r][v] = _mm512_setzero_si512();
      }
    }
    const int64_t end = std::min(words, (b + 1) * block_words);
    for (int64_t w = b * block_words; w < end; ++w) {
      Codes<kBits> weights[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) weights[v].load(codes + w * 64 + 16 * v);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int step = 0; step < Codes<kBits>::kSteps; ++step) {
          int32_t four;
          std::memcpy(&four, a + r * job.A.depth + (w * Codes<kBits>::kSteps + step) * 4, sizeof four);
          const __m512i bytes = _mm512_set1_epi32(four);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v)
            sums[step % kChains][r][v] = _mm512_dpbusd_epi32(sums[step % kChains][r][v], weights[v].bytes[step], bytes);
        }
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512 scale = _mm512_loadu_ps(job.B.scales + scale_at + b * 64 + 16 * v);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        __m512i sum = sums[0][r][v];
        if constexpr (kChains == 2) sum = _mm512_add_epi32(sum, sums[1][r][v]);
        __m512 product = _mm512_cvtepi32_ps(sum);
        if (job.B.zeros)
          product = _mm512_fnmadd_ps(_mm512_loadu_ps(job.B.zeros + scale_at + b * 64 + 16 * v),
                                     _mm512_set1_ps(static_cast<float>(job.A.sums[(row + r) * blocks + b])), product);
        const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(job.A.scales[(row + r) * blocks + b]));
        totals[r][v] = _mm512_fmadd_ps(product, both, totals[r][v]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t n = job.panel * 64 + column + 16 * v;
      if (n >= s.N) continue;
      const auto mask = static_cast<__mmask16>(s.N - n >= 16 ? 0xFFFF : (1 << (s.N - n)) - 1);
      _mm512_mask_storeu_ps(job.C + (row + r) * s.N + n, mask, totals[r][v]);
    }
}

template <int kBits, int kRows>
TREADLE_VNNI void columns(const Job& job, int64_t row) {
  constexpr int kVectors = kRows <= 2 ? 4 : 2;
  const int64_t left = std::min<int64_t>(64, job.B.shape.N - job.panel * 64);
  for (int64_t column = 0; column < left; column += 16 * kVectors) tile<kBits, kRows, kVectors>(job, row, column);
}

template <int kBits>
void compute_rows(const Job& job, int64_t rows) {
  constexpr void (*kTiles[])(const Job&, int64_t) = {columns<kBits, 1>, columns<kBits, 2>, columns<kBits, 3>,
                                                     columns<kBits, 4>, columns<kBits, 5>, columns<kBits, 6>};
  compute_in_tiles(kTiles, job, rows);
}

}  // namespace

void blocked_bytes_tile_avx512vnni(const BlockedBytesRows& A, int64_t rows, const PackedBlocked& B, int64_t panel, float* C) {
  const Job job{A, B, panel, C};
  B.shape.bits == 4 ? compute_rows<4>(job, rows) : compute_rows<8>(job, rows);
}

}  // namespace treadle::kernels
#else

namespace treadle::kernels {
void blocked_bytes_tile_avx512vnni(const BlockedBytesRows&, int64_t, const PackedBlocked&, int64_t, float*) {}
}  // namespace treadle::kernels
#endif
