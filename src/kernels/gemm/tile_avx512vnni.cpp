// Compiled for AVX512-VNNI; called only if cpu_info() reports it.
#include "kernels/gemm/tile_vnni.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define TREADLE_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

namespace treadle::kernels {
namespace {

constexpr int kVectors = 4, kMaxRows = 6;

template <int kRows>
TREADLE_VNNI void rows_of(const ByteTile& tile, int64_t row) {
  __m512i sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_si512();
  const uint8_t* a = tile.A + row * tile.lda;
  const int8_t* b = tile.B;
  for (int64_t k = 0; k < tile.quads; ++k, a += 4, b += 256) {
    __m512i columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) columns[v] = _mm512_loadu_si512(b + 64 * v);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      int32_t four;
      std::memcpy(&four, a + r * tile.lda, sizeof four);
      const __m512i bytes = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpbusd_epi32(sum[r][v], bytes, columns[v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_si512(tile.C + (row + r) * 64 + 16 * v, sum[r][v]);
}

template <int kRows = kMaxRows>
TREADLE_VNNI void rows_any(const ByteTile& tile, int64_t row, int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return rows_any<kRows - 1>(tile, row, rows);
  }
  rows_of<kRows>(tile, row);
}

}  // namespace

TREADLE_VNNI void byte_tile_avx512vnni(const ByteTile& tile) {
  const int64_t blocks = (tile.rows + kMaxRows - 1) / kMaxRows;  // rows are split evenly: 7 rows are 4 + 3
  int64_t row = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t count = tile.rows / blocks + (block < tile.rows % blocks ? 1 : 0);
    rows_any(tile, row, count);
    row += count;
  }
}

}  // namespace treadle::kernels
#else
namespace treadle::kernels {
void byte_tile_avx512vnni(const ByteTile& tile) { byte_tile_plain(tile); }
}  // namespace treadle::kernels
#endif
