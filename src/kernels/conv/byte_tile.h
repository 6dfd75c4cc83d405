// Micro-kernels of byte convolutions and byte pools.
#pragma once

#include <cstdint>

#include "kernels/conv/window.h"
#include "kernels/gemm/gemm_bytes.h"

namespace treadle::kernels {

/// How 32-bit sums are converted to bytes. The arrays have one element per column, rounded up to 16.
struct ByteEpilogue {
  const int32_t* offsets;
  const float* scales;
  int32_t zero;
  bool is_signed;
};

/// A product of rows of A (unsigned) and one panel of 16 * vectors columns of B.
struct ByteConvTile {
  const uint8_t* A;
  int64_t lda;
  const int8_t* B;  ///< the panel: for each four consecutive k, four bytes per column
  int64_t quads;
  int vectors;  ///< number of vectors, 1 to 4
  ByteEpilogue epilogue;
  uint8_t* y;
  int64_t ldy, columns, rows;
  int32_t* sums = nullptr;  ///< if not null: receives the sums plus offsets instead of y
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
/// Like map_bytes_plain(). Returns false without doing anything if the CPU has no AVX512-VBMI.
bool map_bytes_avx512vbmi(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y);

}  // namespace treadle::kernels
