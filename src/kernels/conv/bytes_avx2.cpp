// Compiled for AVX2 (and AVX-VNNI); called only if the CPU has it. Gives the same sums and bytes as the plain loops.
#include <algorithm>

#include "kernels/conv/byte_tile.h"

#if defined(__x86_64__)
#include "kernels/gemm/byte_products_avx2.h"

#define TREADLE_BYTES __attribute__((target("avx2,fma")))

namespace treadle::kernels {
namespace {

using Sums = __m256i[2];  // accumulators of 16 columns

TREADLE_BYTES inline __m256i load(const int32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

TREADLE_BYTES inline __m256i rounded(__m256 value) {
  const __m256 bound = _mm256_set1_ps(1e6F);
  return _mm256_cvtps_epi32(_mm256_min_ps(bound, _mm256_max_ps(_mm256_sub_ps(_mm256_setzero_ps(), bound), value)));
}
TREADLE_BYTES inline __m256 floats_or_zero(const float* values, int64_t column) {
  return values ? _mm256_loadu_ps(values + column) : _mm256_setzero_ps();
}
TREADLE_BYTES inline __m128i load_bytes(const uint8_t* src, int64_t count) {
  if (count >= 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
  alignas(16) uint8_t some[16] = {};
  std::memcpy(some, src, static_cast<size_t>(count));
  return _mm_load_si128(reinterpret_cast<const __m128i*>(some));
}

// ByteAddition for 16 columns.
struct Addition {
  __m256i least, largest, residual_zero;  // the range of the codes before, relative to their zero point
  __m256 factor, addend[2], residual_factor;
  const uint8_t* residual;
  bool residual_signed;

  TREADLE_BYTES void set(const ByteAddition& a, int32_t zero_before, bool signed_before, int64_t column) {
    least = _mm256_set1_epi32((signed_before ? -128 : 0) - zero_before), largest = _mm256_add_epi32(least, _mm256_set1_epi32(255));
    factor = _mm256_set1_ps(a.factor);
    for (int v = 0; v < 2; ++v) addend[v] = floats_or_zero(a.addends, column + 8 * v);
    residual = a.residual, residual_signed = a.residual_signed;
    residual_zero = _mm256_set1_epi32(a.residual_zero), residual_factor = _mm256_set1_ps(a.residual_factor);
  }
  TREADLE_BYTES void add(Sums& codes, int64_t place, int64_t count) const {
    const __m128i bytes = residual ? load_bytes(residual + place, count) : _mm_setzero_si128(), upper = _mm_srli_si128(bytes, 8);
    for (int v = 0; v < 2; ++v) {
      const __m256i inside = _mm256_max_epi32(least, _mm256_min_epi32(largest, codes[v]));
      __m256 sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(inside), factor, addend[v]);
      if (residual) {
        const __m128i half = v == 0 ? bytes : upper;
        const __m256i wide = residual_signed ? _mm256_cvtepi8_epi32(half) : _mm256_cvtepu8_epi32(half);
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(wide, residual_zero)), residual_factor, sum);
      }
      codes[v] = rounded(sum);
    }
  }
};

// Converts sums of 16 columns to bytes as ByteEpilogue says. The intermediate saturation to 16 bits does not change the result.
struct Scaling {
  __m256i offset[2], zero;
  __m256 scale[2], addend[2];
  int num_additions;
  bool is_signed;
  Addition additions[kMaxByteAdditions];

  TREADLE_BYTES Scaling(const ByteEpilogue& e, int64_t column)
      : offset{load(e.offsets + column), load(e.offsets + column + 8)},
        scale{_mm256_loadu_ps(e.scales + column), _mm256_loadu_ps(e.scales + column + 8)},
        addend{floats_or_zero(e.addends, column), floats_or_zero(e.addends, column + 8)},
        num_additions(e.num_additions),
        is_signed(e.is_signed) {
    int32_t last_zero = e.zero;
    for (int i = 0; i < num_additions; ++i) {
      additions[i].set(e.additions[i], last_zero, is_signed, column);
      last_zero = e.additions[i].zero, is_signed = e.additions[i].is_signed;
    }
    zero = _mm256_set1_epi32(last_zero);
  }
  /// @param place  index of the first result among all; @param count  number of results to read residuals for
  TREADLE_BYTES __m128i to_bytes(const Sums& sums, int64_t place, int64_t count) const {
    Sums codes;
    for (int v = 0; v < 2; ++v)
      codes[v] = rounded(_mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(sums[v], offset[v])), scale[v], addend[v]));
    for (int i = 0; i < num_additions; ++i) additions[i].add(codes, place, count);
    // Packing works within 128-bit halves, which leaves groups of four columns in the order 0, 2, 1, 3.
    const __m256i words =
        _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_add_epi32(codes[0], zero), _mm256_add_epi32(codes[1], zero)), 0xD8);
    const __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    return is_signed ? _mm_packs_epi16(low, high) : _mm_packus_epi16(low, high);
  }
};

TREADLE_BYTES inline void store_bytes(__m128i bytes, int64_t count, uint8_t* dst) {
  if (count >= 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), bytes);
  } else if (count > 0) {
    alignas(16) uint8_t some[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(some), bytes);
    std::memcpy(dst, some, static_cast<size_t>(count));
  }
}

// Returns a mask of the first `count` lanes of a vector.
TREADLE_BYTES inline __m256i first(int64_t count) {
  const auto last = static_cast<int32_t>(count > 8 ? 8 : count);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(last), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

TREADLE_BYTES inline void store_sums(const Sums& sums, const ByteEpilogue& e, int64_t column, int64_t count, int32_t* dst) {
  for (int v = 0; v < 2; ++v)
    if (count > 8 * v)
      _mm256_maskstore_epi32(dst + 8 * v, first(count - 8 * v), _mm256_add_epi32(sums[v], load(e.offsets + column + 8 * v)));
}

template <bool kVnni, int kRows>
TREADLE_BYTES void rows_of(const ByteConvTile& tile, int64_t row, int64_t column) {
  Sums sum[kRows];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
  const int64_t b_step = 64 * tile.vectors;
  for (int64_t segment = 0; segment < tile.segments; ++segment)
    add_byte_quads<kVnni, kRows>(tile.A + row * tile.lda + segment * tile.a_segment, tile.lda,
                                 tile.B + segment * tile.quads * b_step + 4 * column, b_step, tile.quads, sum);
  const int64_t count = tile.columns - column;
  if (count <= 0) return;
  if (tile.row_offsets) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r)
      for (__m256i& half : sum[r]) half = _mm256_add_epi32(half, _mm256_set1_epi32(tile.row_offsets[row + r]));
  }
  if (tile.sums) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r)
      store_sums(sum[r], tile.epilogue, tile.column + column, count, tile.sums + (row + r) * tile.ldy + column);
    return;
  }
  const Scaling scaling(tile.epilogue, tile.column + column);
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    const int64_t place = (row + r) * tile.ldy + column;
    store_bytes(scaling.to_bytes(sum[r], tile.first + place, count), count, tile.y + place);
  }
}

template <bool kVnni, int kRows = kMaxByteRows<kVnni>>
TREADLE_BYTES void rows_any(const ByteConvTile& tile, int64_t row, int64_t rows, int64_t column) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return rows_any<kVnni, kRows - 1>(tile, row, rows, column);
  }
  rows_of<kVnni, kRows>(tile, row, column);
}

template <bool kVnni>
void all_rows(const ByteConvTile& tile) {
  const int64_t blocks = (tile.rows + kMaxByteRows<kVnni> - 1) / kMaxByteRows<kVnni>;  // rows are split evenly: 5 rows are 3 + 2
  for (int64_t column = 0; column < 16 * tile.vectors; column += 16)
    for (int64_t block = 0, row = 0; block < blocks; ++block) {
      const int64_t count = tile.rows / blocks + (block < tile.rows % blocks ? 1 : 0);
      rows_any<kVnni>(tile, row, count, column);
      row += count;
    }
}

// Iterates over the taps of a window, for a group of channels that begins with channel c.
struct TapWalk {
  const ByteDepthwiseRow& row;
  const Taps &down, &along;
  int64_t c, i, j;
  const uint8_t* x = nullptr;        // address of the tap's pixel for the first output
  const int32_t* weights = nullptr;  // the tap's weights, as int32 whose upper 16 bits are zero

  TapWalk(const ByteDepthwiseRow& r, const Taps& vertical, const Taps& horizontal, int64_t channel)
      : row(r), down(vertical), along(horizontal), c(channel), i(vertical.first), j(horizontal.first) {}
  int64_t count() const { return (down.last - down.first) * (along.last - along.first); }
  void next() {
    const Window& w = *row.window;
    x = row.x + ((down.start + i * w.dilation[1]) * w.in[2] + along.start + j * w.dilation[2]) * row.C + c;
    weights = row.weights + (i * w.kernel[2] + j) * row.C + c;
    if (++j == along.last) j = along.first, ++i;
  }
};

// Widens 16 bytes to 16-bit integers.
template <bool kSigned>
TREADLE_BYTES inline __m256i widened(__m128i bytes) {
  return kSigned ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
}
// Adds 16 channels of two taps at each pixel to `sums`; `factors` contains the weights of the two taps in pairs.
template <bool kSigned, int kPixels>
TREADLE_BYTES inline void add_two_taps(const uint8_t* x0, const uint8_t* x1, int64_t step, __m256i zero, const Sums& factors,
                                       Sums (&sum)[kPixels]) {
#pragma GCC unroll 4
  for (int p = 0; p < kPixels; ++p) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x0 + p * step));
    const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x1 + p * step));
    const __m128i pairs[2] = {_mm_unpacklo_epi8(first, second), _mm_unpackhi_epi8(first, second)};
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
      sum[p][v] = _mm256_add_epi32(sum[p][v], _mm256_madd_epi16(_mm256_sub_epi16(widened<kSigned>(pairs[v]), zero), factors[v]));
  }
}

template <int kPixels>
TREADLE_BYTES inline void store_depthwise(const ByteDepthwiseRow& row, const Sums (&sum)[kPixels], int64_t ow, int64_t c, int64_t count) {
  if (row.sums) {
#pragma GCC unroll 4
    for (int p = 0; p < kPixels; ++p) store_sums(sum[p], row.epilogue, c, count, row.sums + (ow + p) * row.C + c);
    return;
  }
  const Scaling scaling(row.epilogue, c);
#pragma GCC unroll 4
  for (int p = 0; p < kPixels; ++p) {
    const int64_t place = (ow + p) * row.C + c;
    store_bytes(scaling.to_bytes(sum[p], row.first + place, count), count, row.y + place);
  }
}

// Computes pixels [ow, ow + kPixels) for the 16 channels that begin with c. One 16-bit multiply-add handles two taps.
template <bool kSigned, int kPixels>
TREADLE_BYTES void depthwise_pixels(const ByteDepthwiseRow& row, const Taps& down, const Taps& along, int64_t ow, int64_t c) {
  const int64_t step = row.window->stride[2] * row.C;
  const __m256i zero = _mm256_set1_epi16(static_cast<int16_t>(row.x_zero));
  Sums sum[kPixels];
#pragma GCC unroll 4
  for (int p = 0; p < kPixels; ++p) sum[p][0] = sum[p][1] = _mm256_setzero_si256();
  TapWalk walk(row, down, along, c);
  int64_t left = walk.count();
  for (; left >= 2; left -= 2) {
    walk.next();
    const uint8_t* x = walk.x;
    Sums factors = {load(walk.weights), load(walk.weights + 8)};
    walk.next();
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) factors[v] = _mm256_or_si256(factors[v], _mm256_slli_epi32(load(walk.weights + 8 * v), 16));
    add_two_taps<kSigned, kPixels>(x, walk.x, step, zero, factors, sum);
  }
  if (left > 0) {
    walk.next();
    const Sums factors = {load(walk.weights), load(walk.weights + 8)};
    add_two_taps<kSigned, kPixels>(walk.x, walk.x, step, zero, factors, sum);
  }
  store_depthwise(row, sum, ow, c, 16);
}

// Computes one pixel with fewer than 16 channels.
template <bool kSigned>
TREADLE_BYTES void depthwise_narrow(const ByteDepthwiseRow& row, const Taps& down, const Taps& along, int64_t ow) {
  alignas(32) int32_t sums[16] = {};
  TapWalk walk(row, down, along, 0);
  for (int64_t left = walk.count(); left > 0; --left) {
    walk.next();
    for (int64_t c = 0; c < row.C; ++c) {
      const int32_t x = kSigned ? static_cast<int8_t>(walk.x[c]) : walk.x[c];
      sums[c] += (x - row.x_zero) * static_cast<int16_t>(walk.weights[c]);
    }
  }
  const Sums sum[1] = {{load(sums), load(sums + 8)}};
  store_depthwise(row, sum, ow, 0, row.C);
}

template <bool kSigned, int kPixels>
TREADLE_BYTES void depthwise_channels(const ByteDepthwiseRow& row, const Taps& down, const Taps& along, int64_t ow) {
  constexpr int64_t kChannels = 16;
  if (row.C < kChannels) {
    Taps moved = along;
    for (int64_t p = 0; p < kPixels; ++p, moved.start += row.window->stride[2]) depthwise_narrow<kSigned>(row, down, moved, ow + p);
    return;
  }
  for (int64_t begin = 0; begin < row.C; begin += kChannels)  // the last group may overlap the previous one
    depthwise_pixels<kSigned, kPixels>(row, down, along, ow, std::min(begin, row.C - kChannels));
}

template <bool kSigned>
void depthwise_row(const ByteDepthwiseRow& row) {
  constexpr int kPixels = 4;
  each_of_row<kPixels>(
      row, [&](const Taps& down, const Taps& along, int64_t ow) { depthwise_channels<kSigned, kPixels>(row, down, along, ow); },
      [&](const Taps& down, const Taps& along, int64_t ow) { depthwise_channels<kSigned, 1>(row, down, along, ow); });
}

}  // namespace

void byte_conv_tile_avx2(const ByteConvTile& tile, bool vnni) { vnni ? all_rows<true>(tile) : all_rows<false>(tile); }

void byte_depthwise_row_avx2(const ByteDepthwiseRow& row) { row.x_signed ? depthwise_row<true>(row) : depthwise_row<false>(row); }

TREADLE_BYTES void byte_max_row_avx2(const ByteMaxRow& row) {
  constexpr int64_t kBytes = 32;
  if (row.C < kBytes) return byte_max_row_plain(row);
  const Window& w = *row.window;
  const Taps down = taps_inside(w, 1, row.oh);
  const __m256i flip = _mm256_set1_epi8(static_cast<char>(row.flip));
  uint8_t* y = row.y;
  for (int64_t ow = 0; ow < w.out[2]; ++ow, y += row.C) {
    const Taps along = taps_inside(w, 2, ow);
    for (int64_t begin = 0; begin < row.C; begin += kBytes) {
      const int64_t c = begin + kBytes <= row.C ? begin : row.C - kBytes;  // the last vector may overlap the previous one
      __m256i largest = _mm256_setzero_si256();
      for (int64_t i = down.first; i < down.last; ++i)
        for (int64_t j = along.first; j < along.last; ++j) {
          const int64_t at = ((down.start + i * w.dilation[1]) * w.in[2] + along.start + j * w.dilation[2]) * row.C + c;
          const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.x + at));
          largest = _mm256_max_epu8(largest, _mm256_xor_si256(bytes, flip));
        }
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + c), _mm256_xor_si256(largest, flip));
    }
  }
}

TREADLE_BYTES void map_bytes_avx2(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y) {
  constexpr int64_t kBytes = 64;  // two vectors at a time share the loads of table rows
  // A shuffle looks up a table row of 16 bytes by an index's lowest four bits, and gives 0 if the index is negative. The index decreases by
  // 16 per row and stays negative then. All rows up to the wanted one contribute, so each row is stored XORed with the row before.
  __m256i rows[16];
  for (int half = 0; half < 2; ++half) {
    __m256i before = _mm256_setzero_si256();
    for (int i = 0; i < 8; ++i) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 128 * half + 16 * i));
      const __m256i row = _mm256_broadcastsi128_si256(bytes);
      rows[8 * half + i] = _mm256_xor_si256(row, before);
      before = row;
    }
  }
  const __m256i step = _mm256_set1_epi8(16), highest = _mm256_set1_epi8(static_cast<char>(0x80));
  int64_t i = 0;
  for (; i + kBytes <= n; i += kBytes) {
    __m256i index[2], found[2];
    for (int v = 0; v < 2; ++v) {
      index[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i + 32 * v));
      found[v] = _mm256_setzero_si256();
    }
    for (int half = 0; half < 2; ++half) {
      __m256i left[2] = {index[0], index[1]};
      for (int row = 0; row < 8; ++row)
        for (int v = 0; v < 2; ++v) {
          found[v] = _mm256_xor_si256(found[v], _mm256_shuffle_epi8(rows[8 * half + row], left[v]));
          left[v] = _mm256_subs_epi8(left[v], step);
        }
      for (__m256i& i_v : index) i_v = _mm256_xor_si256(i_v, highest);
    }
    for (int v = 0; v < 2; ++v) _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i + 32 * v), found[v]);
  }
  map_bytes_plain(n - i, table, x + i, y + i);
}

}  // namespace treadle::kernels
#else
namespace treadle::kernels {
void byte_conv_tile_avx2(const ByteConvTile& tile, bool) { byte_conv_tile_plain(tile); }
void byte_depthwise_row_avx2(const ByteDepthwiseRow& row) { byte_depthwise_row_plain(row); }
void byte_max_row_avx2(const ByteMaxRow& row) { byte_max_row_plain(row); }
void map_bytes_avx2(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y) { map_bytes_plain(n, table, x, y); }
}  // namespace treadle::kernels
#endif
