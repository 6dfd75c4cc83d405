// Micro-kernels of byte convolutions and byte pools.
#pragma once

#include <cstdint>

#include "kernels/conv/window.h"
#include "kernels/gemm/gemm_bytes.h"

namespace treadle::kernels {

/// Adds numbers to a quantized result and quantizes the sum. Codes are relative to their zero points: code = round(code * factor + addend +
/// (residual - residual_zero) * residual_factor). Factors and addends are in units of the sum's scale.
struct ByteAddition {
  float factor = 0;
  const float* addends = nullptr;     ///< one per column, rounded up to 16; null: none
  const uint8_t* residual = nullptr;  ///< bytes in the order of the results; null: none
  float residual_factor = 0;
  int32_t residual_zero = 0;
  bool residual_signed = false;
  int32_t zero = 0;
  bool is_signed = false;
};
inline constexpr int kMaxByteAdditions = 2;

/// Converts 32-bit sums to bytes: code = round((sum + offset) * scale + addend) + zero, then the additions. The arrays have one element per
/// column, rounded up to 16.
struct ByteEpilogue {
  const int32_t* offsets;
  const float* scales;
  int32_t zero;
  bool is_signed;
  const float* addends = nullptr;  ///< null: none
  const ByteAddition* additions = nullptr;
  int num_additions = 0;
};

/// A product of rows of A (unsigned) and one panel of 16 * vectors columns of B.
struct ByteConvTile {
  const uint8_t* A;
  int64_t lda;
  const int8_t* B;  ///< the panel: for each four consecutive k, four bytes per column
  int64_t quads;    ///< number of groups of four k, in each segment
  int vectors;      ///< number of vectors, 1 to 4
  ByteEpilogue epilogue;
  uint8_t* y;
  int64_t ldy, columns, rows;
  int32_t* sums = nullptr;               ///< if not null: receives the sums plus offsets, and y is not written
  const int32_t* row_offsets = nullptr;  ///< if not null: added to the sums of each row
  int64_t segments = 1, a_segment = 0;   ///< number of parts of a row of A, and the step between them in bytes
  int64_t first = 0, column = 0;         ///< place of y among all results, and its first column
};
void byte_conv_tile_plain(const ByteConvTile& tile);
/// Computes a tile. @pre the CPU has AVX2, and AVX-VNNI if `vnni`. All functions in this file that end in _avx2 need AVX2
void byte_conv_tile_avx2(const ByteConvTile& tile, bool vnni);
/// Computes a tile. @pre the CPU has AVX512-VNNI. All functions in this file that end in _avx512vnni need it
void byte_conv_tile_avx512vnni(const ByteConvTile& tile);
/// Calls the version of the function for these instructions. @pre the CPU has them. So do all functions that take ByteInstructions
void byte_conv_tile(const ByteConvTile& tile, ByteInstructions with);

/// One row of outputs of one image of a depthwise convolution.
struct ByteDepthwiseRow {
  const Window* window;
  int64_t C, oh;
  const uint8_t* x;  ///< address of the image
  bool x_signed;
  int32_t x_zero;
  const int32_t* weights;  ///< for each tap, C int32 elements whose upper 16 bits are zero
  ByteEpilogue epilogue;
  uint8_t* y;
  int32_t* sums = nullptr;  ///< if not null: receives the sums plus offsets instead of y
  int64_t first = 0;        ///< place of y among all results
};
/// Divides a row of outputs. Calls some(down, along, ow) for groups of kPixels outputs, the first at ow, whose windows are inside the image
/// along the row; calls one(down, along, ow) for each other output.
template <int kPixels, typename Some, typename One>
void each_of_row(const ByteDepthwiseRow& row, Some some, One one) {
  const Window& w = *row.window;
  const Taps down = taps_inside(w, 1, row.oh);
  for (int64_t ow = 0; ow < w.out[2];) {
    const Taps along = taps_inside(w, 2, ow);
    // If the first tap of the first window and the last tap of the last window are inside, all taps between them are inside too.
    const int64_t last = along.start + (kPixels - 1) * w.stride[2] + (w.kernel[2] - 1) * w.dilation[2];
    if (along.start >= 0 && last < w.in[2] && ow + kPixels <= w.out[2]) {
      some(down, along, ow);
      ow += kPixels;
    } else {
      one(down, along, ow++);
    }
  }
}
void byte_depthwise_row_plain(const ByteDepthwiseRow& row);
void byte_depthwise_row_avx2(const ByteDepthwiseRow& row);
void byte_depthwise_row_avx512vnni(const ByteDepthwiseRow& row);
void byte_depthwise_row(const ByteDepthwiseRow& row, ByteInstructions with);

/// One row of outputs of one image of a convolution whose groups have few channels. Bytes of x count as unsigned after `flip`.
struct ByteGroupRow {
  static constexpr int64_t kMaxTaps = 64;
  const Window* window;
  int64_t C, M, group, oh;
  const uint8_t* x;    ///< address of the image
  const uint8_t* pad;  ///< C bytes of the zero point, which taps outside of the image read
  uint8_t flip;        ///< 0x80 for signed bytes
  const int8_t* weights;
  ByteEpilogue epilogue;
  uint8_t* y;
  int32_t* sums = nullptr;  ///< if not null: receives the sums plus offsets, and y is not written
  int64_t first = 0;        ///< place of y among all results
};
/// The order of depthwise weights, offsets and scales: in blocks of 64 channels (the last one of 16, 32 or 64), the channels of which four
/// vectors of four-byte windows consist if the bytes of four taps are interleaved within 128 bits. Returns the place of a channel.
int64_t interleaved_place(int64_t C, int64_t channel);
/// Returns the number of channels with the padding of the last block.
int64_t interleaved_channels(int64_t C);
/// Returns the number of places for each line of taps: in lines of three, the fourth place is empty.
inline int64_t interleaved_line(int64_t width) { return width == 3 ? 4 : width; }
/// Computes a depthwise row, four taps at a time. Weights have four bytes for each channel, in the order above, for each group of four
/// taps; so have the epilogue's offsets and scales. @pre no additions, no sums, and at most kMaxTaps taps
void byte_interleaved_row_avx512vnni(const ByteGroupRow& row);
/// Returns true if byte_group_row() supports these groups.
bool has_byte_groups(int64_t channels, int64_t filters);
/// Where 16 filters find the channels of their groups, of which a vector has all.
struct ByteGroupHeader {
  int32_t places[16];  ///< for each filter: index of its group's first four channels
  int32_t first_channel, quads;
  int32_t unused[14];  ///< so that weights are aligned as vectors
};
/// Returns the bytes of the packed weights of 16 filters.
inline int64_t byte_group_bytes(int64_t taps, int64_t channels) {
  return static_cast<int64_t>(sizeof(ByteGroupHeader)) + taps * channels * 16;
}
/// Computes a row. Weights have for each 16 filters a header, and for each tap and four channels of a group, four bytes of each filter.
void byte_group_row(const ByteGroupRow& row, ByteInstructions with);
void byte_group_row_plain(const ByteGroupRow& row);
void byte_group_row_avx512vnni(const ByteGroupRow& row);

/// One row of outputs of one image of a maximum pool.
struct ByteMaxRow {
  const Window* window;
  int64_t C, oh;
  const uint8_t* x;  ///< address of the image
  uint8_t flip;      ///< 0x80 for signed bytes: flips the sign bit, so that bytes can be compared as unsigned
  uint8_t* y;
};
void byte_max_row_plain(const ByteMaxRow& row);
void byte_max_row_avx2(const ByteMaxRow& row);
void byte_max_row_avx512vnni(const ByteMaxRow& row);
void byte_max_row(const ByteMaxRow& row, ByteInstructions with);

/// Sets y[i] = table[x[i]]; y may be x.
void map_bytes_plain(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y);
void map_bytes_avx2(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y);
/// Calls map_bytes() for n bytes of each row, in place.
void map_byte_rows(int64_t rows, int64_t n, int64_t stride, const uint8_t* table, uint8_t* y);
/// Like map_byte_rows(). Returns false without doing anything if the CPU has no AVX512-VBMI.
bool map_byte_rows_avx512vbmi(int64_t rows, int64_t n, int64_t stride, const uint8_t* table, uint8_t* y);
/// Like map_bytes_plain(). Returns false without doing anything if the CPU has no AVX512-VBMI.
bool map_bytes_avx512vbmi(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y);

}  // namespace treadle::kernels
