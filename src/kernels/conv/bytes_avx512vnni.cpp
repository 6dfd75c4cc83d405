// Compiled for AVX512-VNNI (and VBMI); called only if the CPU has it. Dense products use AMX if the CPU has AMX, too.
#include "core/base/cpu_info.h"
#include "kernels/conv/byte_tile.h"
#include "kernels/gemm/tile_amx.h"

#if defined(__x86_64__)
// GCC 12 warns about registers that its own intrinsics leave undefined on purpose.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define TREADLE_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define TREADLE_VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))

namespace treadle::kernels {
namespace {

// Scales 16 columns as requantize() does.
struct Scaling {
  __m512i offset, zero;
  __m512 scale, bound;
  bool is_signed;

  TREADLE_VNNI Scaling(const ByteEpilogue& e, int64_t column)
      : offset(_mm512_loadu_si512(e.offsets + column)),
        zero(_mm512_set1_epi32(e.zero)),
        scale(_mm512_loadu_ps(e.scales + column)),
        bound(_mm512_set1_ps(1e6F)),
        is_signed(e.is_signed) {}
  TREADLE_VNNI __m128i to_bytes(__m512i sums) const {
    const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(sums, offset)), scale);
    const __m512 inside = _mm512_min_ps(bound, _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), bound), scaled));
    const __m512i shifted = _mm512_add_epi32(_mm512_cvtps_epi32(inside), zero);
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

// Converts sums, in rows of 16 * vectors, to the tile's output.
TREADLE_VNNI void finish_rows(const ByteConvTile& tile, int64_t row, int64_t rows, int64_t vectors, const int32_t* sums) {
  if (tile.sums) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t v = 0; v < vectors; ++v)
        store_sums(_mm512_load_si512(sums + (r * vectors + v) * 16), tile.epilogue, 16 * v, tile.columns - 16 * v,
                   tile.sums + (row + r) * tile.ldy + 16 * v);
    return;
  }
  for (int64_t v = 0; v < vectors; ++v) {
    const Scaling scaling(tile.epilogue, 16 * v);
    for (int64_t r = 0; r < rows; ++r)
      store_bytes(scaling.to_bytes(_mm512_load_si512(sums + (r * vectors + v) * 16)), tile.columns - 16 * v,
                  tile.y + (row + r) * tile.ldy + 16 * v);
  }
}

template <int kVectors, int kRows>
TREADLE_VNNI void rows_of(const ByteConvTile& tile, int64_t row) {
  __m512i sum[kRows][kVectors];
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_si512();
  const uint8_t* a = tile.A + row * tile.lda;
  const int8_t* b = tile.B;
  for (int64_t k = 0; k < tile.quads; ++k, a += 4, b += 64 * kVectors) {
    __m512i columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) columns[v] = _mm512_loadu_si512(b + 64 * v);
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) {
      int32_t four;
      std::memcpy(&four, a + r * tile.lda, sizeof four);
      const __m512i bytes = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpbusd_epi32(sum[r][v], bytes, columns[v]);
    }
  }
  // Stores the sums to memory first: an epilogue that is unrolled here would make GCC keep the sums in memory during the loop above too.
  alignas(64) int32_t sums[kRows * kVectors * 16];
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_store_si512(sums + (r * kVectors + v) * 16, sum[r][v]);
  finish_rows(tile, row, kRows, kVectors, sums);
}

template <int kVectors, int kRows>
TREADLE_VNNI void rows_any(const ByteConvTile& tile, int64_t row, int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return rows_any<kVectors, kRows - 1>(tile, row, rows);
  }
  rows_of<kVectors, kRows>(tile, row);
}

template <int kVectors, int kMaxRows>
TREADLE_VNNI void all_rows(const ByteConvTile& tile) {
  const int64_t blocks = (tile.rows + kMaxRows - 1) / kMaxRows;  // rows are split evenly: 7 rows are 4 + 3
  int64_t row = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t count = tile.rows / blocks + (block < tile.rows % blocks ? 1 : 0);
    rows_any<kVectors, kMaxRows>(tile, row, count);
    row += count;
  }
}

template <bool kSigned>
TREADLE_VNNI inline __m512i load_bytes(const uint8_t* src, int64_t count) {
  const __m128i bytes = count >= 16 ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(src))
                                    : _mm_maskz_loadu_epi8(static_cast<__mmask16>((1U << count) - 1), src);
  return kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
}

// Computes pixels [ow, ow + kPixels) for `count` channels (at most 16 * kVectors), beginning with channel c.
template <bool kSigned, int kVectors, int kPixels>
TREADLE_VNNI inline void depthwise_pixels(const ByteDepthwiseRow& row, const Taps& down, const Taps& along, int64_t ow, int64_t c,
                                          int64_t count) {
  const Window& w = *row.window;
  const int64_t step = w.stride[2] * row.C;
  const __m512i zero = _mm512_set1_epi32(row.x_zero);
  __m512i sum[kPixels][kVectors];
#pragma GCC unroll 4
  for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[p][v] = _mm512_setzero_si512();
  for (int64_t i = down.first; i < down.last; ++i)
    for (int64_t j = along.first; j < along.last; ++j) {
      const uint8_t* x = row.x + ((down.start + i * w.dilation[1]) * w.in[2] + along.start + j * w.dilation[2]) * row.C + c;
      const int32_t* weights = row.weights + (i * w.kernel[2] + j) * row.C + c;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int64_t left = count - 16 * v;
        const __m512i factor = left >= 16 ? _mm512_loadu_si512(weights + 16 * v)
                                          : _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1U << left) - 1), weights + 16 * v);
        // Multiplies only the lower halves of the 32-bit weights, as the upper halves are zero.
#pragma GCC unroll 4
        for (int p = 0; p < kPixels; ++p)
          sum[p][v] = _mm512_dpwssd_epi32(sum[p][v], _mm512_sub_epi32(load_bytes<kSigned>(x + p * step + 16 * v, left), zero), factor);
      }
    }
  alignas(64) int32_t sums[kPixels * kVectors * 16];
#pragma GCC unroll 4
  for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_store_si512(sums + (p * kVectors + v) * 16, sum[p][v]);
  if (row.sums) {
    for (int p = 0; p < kPixels; ++p)
      for (int v = 0; v < kVectors; ++v)
        store_sums(_mm512_load_si512(sums + (p * kVectors + v) * 16), row.epilogue, c + 16 * v, count - 16 * v,
                   row.sums + (ow + p) * row.C + c + 16 * v);
    return;
  }
  for (int v = 0; v < kVectors; ++v) {
    const Scaling scaling(row.epilogue, c + 16 * v);
    for (int p = 0; p < kPixels; ++p)
      store_bytes(scaling.to_bytes(_mm512_load_si512(sums + (p * kVectors + v) * 16)), count - 16 * v,
                  row.y + (ow + p) * row.C + c + 16 * v);
  }
}

template <bool kSigned, int kPixels>
TREADLE_VNNI void depthwise_channels(const ByteDepthwiseRow& row, const Taps& down, const Taps& along, int64_t ow) {
  int64_t c = 0;
  for (; c + 64 <= row.C; c += 64) depthwise_pixels<kSigned, 4, kPixels>(row, down, along, ow, c, 64);
  for (; c + 32 <= row.C; c += 32) depthwise_pixels<kSigned, 2, kPixels>(row, down, along, ow, c, 32);
  for (; c + 16 <= row.C; c += 16) depthwise_pixels<kSigned, 1, kPixels>(row, down, along, ow, c, 16);
  if (c < row.C) depthwise_pixels<kSigned, 1, kPixels>(row, down, along, ow, c, row.C - c);
}

template <bool kSigned>
void depthwise_row(const ByteDepthwiseRow& row) {
  constexpr int kPixels = 4;
  each_of_row<kPixels>(
      row, [&](const Taps& down, const Taps& along, int64_t ow) { depthwise_channels<kSigned, kPixels>(row, down, along, ow); },
      [&](const Taps& down, const Taps& along, int64_t ow) { depthwise_channels<kSigned, 1>(row, down, along, ow); });
}

TREADLE_VBMI void map_vectors(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y) {
  __m512i part[4];
  for (int i = 0; i < 4; ++i) part[i] = _mm512_loadu_si512(table + 64 * i);
  for (int64_t i = 0; i < n; i += 64) {
    const __mmask64 mask = n - i >= 64 ? ~uint64_t{0} : (uint64_t{1} << (n - i)) - 1;
    const __m512i index = _mm512_maskz_loadu_epi8(mask, x + i);
    const __m512i low = _mm512_permutex2var_epi8(part[0], index, part[1]), high = _mm512_permutex2var_epi8(part[2], index, part[3]);
    _mm512_mask_storeu_epi8(y + i, mask, _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high));
  }
}

}  // namespace

TREADLE_VNNI void byte_conv_tile_avx512vnni(const ByteConvTile& tile) {
  if (uses_amx_bytes(tile.rows, tile.quads)) {
    constexpr int64_t kRows = 96;
    alignas(64) int32_t sums[kRows * 4 * 16];
    for (int64_t row = 0; row < tile.rows; row += kRows) {
      const int64_t rows = std::min(kRows, tile.rows - row);
      amx_byte_sums(tile.A + row * tile.lda, tile.lda, tile.B, tile.quads, tile.vectors, rows, sums);
      finish_rows(tile, row, rows, tile.vectors, sums);
    }
    return;
  }
  switch (tile.vectors) {
    case 1: return all_rows<1, 14>(tile);
    case 2: return all_rows<2, 10>(tile);
    case 3: return all_rows<3, 8>(tile);
    default: return all_rows<4, 6>(tile);
  }
}

TREADLE_VNNI void byte_depthwise_row_avx512vnni(const ByteDepthwiseRow& row) {
  row.x_signed ? depthwise_row<true>(row) : depthwise_row<false>(row);
}

TREADLE_VNNI void byte_max_row_avx512vnni(const ByteMaxRow& row) {
  const Window& w = *row.window;
  const Taps down = taps_inside(w, 1, row.oh);
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(row.flip));
  uint8_t* y = row.y;
  for (int64_t ow = 0; ow < w.out[2]; ++ow, y += row.C) {
    const Taps along = taps_inside(w, 2, ow);
    for (int64_t c = 0; c < row.C; c += 64) {
      const __mmask64 mask = row.C - c >= 64 ? ~uint64_t{0} : (uint64_t{1} << (row.C - c)) - 1;
      __m512i largest = _mm512_setzero_si512();
      for (int64_t i = down.first; i < down.last; ++i)
        for (int64_t j = along.first; j < along.last; ++j) {
          const int64_t at = ((down.start + i * w.dilation[1]) * w.in[2] + along.start + j * w.dilation[2]) * row.C + c;
          largest = _mm512_max_epu8(largest, _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, row.x + at), flip));
        }
      _mm512_mask_storeu_epi8(y + c, mask, _mm512_xor_si512(largest, flip));
    }
  }
}

bool map_bytes_avx512vbmi(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y) {
  static const bool has_vbmi = cpu_info().features.avx512 && __builtin_cpu_supports("avx512vbmi") != 0;
  if (has_vbmi) map_vectors(n, table, x, y);
  return has_vbmi;
}

}  // namespace treadle::kernels
#else
namespace treadle::kernels {
void byte_conv_tile_avx512vnni(const ByteConvTile& tile) { byte_conv_tile_plain(tile); }
void byte_depthwise_row_avx512vnni(const ByteDepthwiseRow& row) { byte_depthwise_row_plain(row); }
void byte_max_row_avx512vnni(const ByteMaxRow& row) { byte_max_row_plain(row); }
bool map_bytes_avx512vbmi(int64_t, const uint8_t*, const uint8_t*, uint8_t*) { return false; }
}  // namespace treadle::kernels
#endif
