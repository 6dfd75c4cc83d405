// The micro-kernels of convolutions of bytes.
#pragma once

#include <cstdint>

#include "kernels/conv/window.h"
#include "kernels/gemm/gemm_bytes.h"

namespace treadle::kernels {

/// How 32-bit sums become bytes. The arrays are as long as the columns, rounded up to 16.
struct ByteEpilogue {
  const int32_t* offsets;
  const float* scales;
  int32_t zero;
  bool is_signed;
};

/// Rows of A (unsigned) times one panel of 16 * vectors columns.
struct ByteConvTile {
  const uint8_t* A;
  int64_t lda;
  const int8_t* B;  ///< for each four of K, the columns' four bytes
  int64_t quads;
  int vectors;  ///< 1 to 4
  ByteEpilogue epilogue;
  uint8_t* y;
  int64_t ldy, columns, rows;
  int32_t* sums = nullptr;  ///< in place of y: the sums with their offsets
};
void byte_conv_tile_plain(const ByteConvTile& tile);
/// @pre the CPU has AVX2, here and below, and AVX-VNNI if `vnni`
void byte_conv_tile_avx2(const ByteConvTile& tile, bool vnni);
/// @pre the CPU has AVX512-VNNI, here and below
void byte_conv_tile_avx512vnni(const ByteConvTile& tile);
/// @pre the CPU has what is named, here and below
void byte_conv_tile(const ByteConvTile& tile, ByteInstructions with);

/// One row of outputs of one image.
struct ByteDepthwiseRow {
  const Window* window;
  int64_t C, oh;
  const uint8_t* x;  ///< the image
  bool x_signed;
  int32_t x_zero;
  const int32_t* weights;  ///< for each tap, C elements whose upper halves are zero
  ByteEpilogue epilogue;
  uint8_t* y;
  int32_t* sums = nullptr;  ///< in place of y: the sums with their offsets
};
/// Calls some(down, along, ow) where the windows of kPixels outputs from ow on have all their taps along inside, one(down, along, ow) for
/// each other output.
template <int kPixels, typename Some, typename One>
void each_of_row(const ByteDepthwiseRow& row, Some some, One one) {
  const Window& w = *row.window;
  const Taps down = taps_inside(w, 1, row.oh);
  for (int64_t ow = 0; ow < w.out[2];) {
    const Taps along = taps_inside(w, 2, ow);
    // All taps of the first and the last: so are those between.
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

/// One row of outputs of one image's maxima.
struct ByteMaxRow {
  const Window* window;
  int64_t C, oh;
  const uint8_t* x;  ///< the image
  uint8_t flip;      ///< 0x80 for signed bytes: the largest is then that of the unsigned ones
  uint8_t* y;
};
void byte_max_row_plain(const ByteMaxRow& row);
void byte_max_row_avx2(const ByteMaxRow& row);
void byte_max_row_avx512vnni(const ByteMaxRow& row);
void byte_max_row(const ByteMaxRow& row, ByteInstructions with);

/// y[i] = table[x[i]]; y may be x.
void map_bytes_plain(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y);
void map_bytes_avx2(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y);
/// False if the CPU lacks AVX512-VBMI; nothing is done then.
bool map_bytes_avx512vbmi(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y);

}  // namespace treadle::kernels
