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

#include "kernels/conv/byte_scaling_avx512.h"

#define TREADLE_VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))

namespace treadle::kernels {
namespace {

using namespace avx512;

// Sums of a tile's rows, in rows of 16 * kVectors.
template <int kVectors>
struct TileSums {
  const ByteConvTile& tile;
  int64_t row, rows;
  const int32_t* sums;

  TREADLE_VNNI __m512i at(int64_t r, int64_t v) const {
    const __m512i sum = _mm512_load_si512(sums + (r * kVectors + v) * 16);
    return tile.row_offsets ? _mm512_add_epi32(sum, _mm512_set1_epi32(tile.row_offsets[row + r])) : sum;
  }
};

// Converts sums to bytes, 64 columns at a time. Codes are clamped from above only: a number too large for an
// integer would become the lowest one, while others saturate where they are packed.
template <int kVectors>
TREADLE_VNNI void finish_bytes(const TileSums<kVectors>& sums) {
  const ByteConvTile& tile = sums.tile;
  const ByteEpilogue& e = tile.epilogue;
  __m512i offset[kVectors];
  __m512 scale[kVectors], addend[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    offset[v] = _mm512_loadu_si512(e.offsets + tile.column + 16 * v);
    scale[v] = _mm512_loadu_ps(e.scales + tile.column + 16 * v), addend[v] = floats_or_zero(e.addends, tile.column + 16 * v);
  }
  Addition additions[kMaxByteAdditions][kVectors];
  int32_t last_zero = e.zero;
  bool is_signed = e.is_signed;
  for (int i = 0; i < e.num_additions; ++i) {
    for (int v = 0; v < kVectors; ++v) additions[i][v].set(e.additions[i], last_zero, is_signed, tile.column + 16 * v);
    last_zero = e.additions[i].zero, is_signed = e.additions[i].is_signed;
  }
  const __m512i zero = _mm512_set1_epi16(static_cast<int16_t>(last_zero));
  const __m512 bound = _mm512_set1_ps(1e6F);
  // Packing works within 128 bits, which leaves four columns of each vector side by side.
  const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __mmask64 mask = tile.columns >= 64 ? ~uint64_t{0} : (uint64_t{1} << tile.columns) - 1;
  for (int64_t r = 0; r < sums.rows; ++r) {
    __m512i code[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      if (v >= kVectors) {
        code[v] = _mm512_setzero_si512();
        continue;
      }
      const __m512 value = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(sums.at(r, v), offset[v])), scale[v], addend[v]);
      code[v] = _mm512_cvtps_epi32(_mm512_min_ps(bound, value));
    }
    const int64_t place = tile.first + (sums.row + r) * tile.ldy;
    for (int i = 0; i < e.num_additions; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        if (tile.columns > 16 * v) code[v] = additions[i][v].added(code[v], place + 16 * v, tile.columns - 16 * v);
    const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32(code[0], code[1]), zero);
    const __m512i high = _mm512_adds_epi16(_mm512_packs_epi32(code[2], code[3]), zero);
    const __m512i bytes = is_signed ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high);
    _mm512_mask_storeu_epi8(tile.y + (sums.row + r) * tile.ldy, mask, _mm512_permutexvar_epi32(in_order, bytes));
  }
}

// Converts sums to the tile's output.
template <int kVectors>
TREADLE_VNNI void finish_rows(const TileSums<kVectors>& sums) {
  const ByteConvTile& tile = sums.tile;
  if (!tile.sums) return finish_bytes(sums);
  for (int64_t v = 0; v < kVectors; ++v)
    for (int64_t r = 0; r < sums.rows; ++r)
      store_sums(sums.at(r, v), tile.epilogue, tile.column + 16 * v, tile.columns - 16 * v, tile.sums + (sums.row + r) * tile.ldy + 16 * v);
}

template <int kVectors, int kRows>
TREADLE_VNNI void rows_of(const ByteConvTile& tile, int64_t row) {
  __m512i sum[kRows][kVectors];
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_si512();
  const int8_t* b = tile.B;
  for (int64_t segment = 0; segment < tile.segments; ++segment) {
    const uint8_t* a = tile.A + row * tile.lda + segment * tile.a_segment;
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
  }
  // Stores the sums to memory first: an epilogue that is unrolled here would make GCC keep the sums in memory during the loop above too.
  alignas(64) int32_t sums[kRows * kVectors * 16];
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_store_si512(sums + (r * kVectors + v) * 16, sum[r][v]);
  finish_rows(TileSums<kVectors>{tile, row, kRows, sums});
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
    for (int p = 0; p < kPixels; ++p) {
      const int64_t place = (ow + p) * row.C + c + 16 * v;
      store_bytes(scaling.to_bytes(_mm512_load_si512(sums + (p * kVectors + v) * 16), row.first + place, count - 16 * v), count - 16 * v,
                  row.y + place);
    }
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

struct ByteTable {
  __m512i part[4];

  TREADLE_VBMI explicit ByteTable(const uint8_t* table) {
    for (int i = 0; i < 4; ++i) part[i] = _mm512_loadu_si512(table + 64 * i);
  }
  TREADLE_VBMI void map(int64_t n, const uint8_t* x, uint8_t* y) const {
    for (int64_t i = 0; i < n; i += 64) {
      const __mmask64 mask = n - i >= 64 ? ~uint64_t{0} : (uint64_t{1} << (n - i)) - 1;
      const __m512i index = _mm512_maskz_loadu_epi8(mask, x + i);
      const __m512i low = _mm512_permutex2var_epi8(part[0], index, part[1]), high = _mm512_permutex2var_epi8(part[2], index, part[3]);
      _mm512_mask_storeu_epi8(y + i, mask, _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high));
    }
  }
};
TREADLE_VBMI void map_rows(int64_t rows, int64_t n, int64_t stride, const uint8_t* table, const uint8_t* x, uint8_t* y) {
  const ByteTable lookup(table);
  for (int64_t r = 0; r < rows; ++r) lookup.map(n, x + r * stride, y + r * stride);
}
bool has_vbmi() {
  static const bool has = cpu_info().features.avx512 && __builtin_cpu_supports("avx512vbmi") != 0;
  return has;
}

}  // namespace

TREADLE_VNNI void byte_conv_tile_avx512vnni(const ByteConvTile& tile) {
  if (tile.segments == 1 && uses_amx_bytes(tile.rows, tile.quads)) {
    constexpr int64_t kRows = 96;
    alignas(64) int32_t sums[kRows * 4 * 16];
    for (int64_t row = 0; row < tile.rows; row += kRows) {
      const int64_t rows = std::min(kRows, tile.rows - row);
      amx_byte_sums(tile.A + row * tile.lda, tile.lda, tile.B, tile.quads, tile.vectors, rows, sums);
      switch (tile.vectors) {
        case 1: finish_rows(TileSums<1>{tile, row, rows, sums}); break;
        case 2: finish_rows(TileSums<2>{tile, row, rows, sums}); break;
        case 3: finish_rows(TileSums<3>{tile, row, rows, sums}); break;
        default: finish_rows(TileSums<4>{tile, row, rows, sums});
      }
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
  if (has_vbmi()) map_rows(1, n, 0, table, x, y);
  return has_vbmi();
}
bool map_byte_rows_avx512vbmi(int64_t rows, int64_t n, int64_t stride, const uint8_t* table, uint8_t* y) {
  if (has_vbmi()) map_rows(rows, n, stride, table, y, y);
  return has_vbmi();
}

}  // namespace treadle::kernels
#else
namespace treadle::kernels {
void byte_conv_tile_avx512vnni(const ByteConvTile& tile) { byte_conv_tile_plain(tile); }
void byte_depthwise_row_avx512vnni(const ByteDepthwiseRow& row) { byte_depthwise_row_plain(row); }
void byte_max_row_avx512vnni(const ByteMaxRow& row) { byte_max_row_plain(row); }
bool map_bytes_avx512vbmi(int64_t, const uint8_t*, const uint8_t*, uint8_t*) { return false; }
bool map_byte_rows_avx512vbmi(int64_t, int64_t, int64_t, const uint8_t*, uint8_t*) { return false; }
}  // namespace treadle::kernels
#endif
