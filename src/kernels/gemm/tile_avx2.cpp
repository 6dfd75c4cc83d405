// Compiled for AVX2 (and AVX-VNNI); called only if cpu_info() reports it.
#include "kernels/gemm/tile_vnni.h"

#if defined(__x86_64__)
#include "kernels/gemm/byte_products_avx2.h"

namespace treadle::kernels {
namespace {

template <bool kVnni, int kRows>
TREADLE_AVX2 void rows_of(const ByteTile& tile, int64_t row, int64_t column) {
  __m256i sum[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
  add_byte_quads<kVnni, kRows>(tile.A + row * tile.lda, tile.lda, tile.B + 4 * column, 256, tile.quads, sum);
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) _mm256_storeu_si256(reinterpret_cast<__m256i*>(tile.C + (row + r) * 64 + column + 8 * v), sum[r][v]);
}

template <bool kVnni, int kRows = kMaxByteRows<kVnni>>
TREADLE_AVX2 void rows_any(const ByteTile& tile, int64_t row, int64_t rows, int64_t column) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return rows_any<kVnni, kRows - 1>(tile, row, rows, column);
  }
  rows_of<kVnni, kRows>(tile, row, column);
}

template <bool kVnni>
TREADLE_AVX2 void all_rows(const ByteTile& tile) {
  const int64_t blocks = (tile.rows + kMaxByteRows<kVnni> - 1) / kMaxByteRows<kVnni>;  // rows are split evenly: 5 rows are 3 + 2
  for (int64_t column = 0; column < 64; column += 16)
    for (int64_t block = 0, row = 0; block < blocks; ++block) {
      const int64_t count = tile.rows / blocks + (block < tile.rows % blocks ? 1 : 0);
      rows_any<kVnni>(tile, row, count, column);
      row += count;
    }
}

}  // namespace

void byte_tile_avx2(const ByteTile& tile, bool vnni) { vnni ? all_rows<true>(tile) : all_rows<false>(tile); }

}  // namespace treadle::kernels
#else
namespace treadle::kernels {
void byte_tile_avx2(const ByteTile& tile, bool) { byte_tile_plain(tile); }
}  // namespace treadle::kernels
#endif
