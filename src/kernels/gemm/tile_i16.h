// The integer micro-kernel.
#pragma once

#include <cstdint>

namespace treadle::kernels {

struct TileJobI16 {
  const int16_t* A;  // rows of `pairs` pairs
  const int16_t* B;  // the panel: for each pair of k, `vectors` vectors of pairs
  int64_t pairs;
  int64_t vectors;
  int32_t* C;  // row 0 and the panel's first column
  int64_t ldc, row_begin, row_end, columns;
};
void gemm_tile_rows_i16(const TileJobI16& job);

/// dst[i] = src[i] - zero, of bytes with a sign or without.
void widen_to_i16(const void* src, bool is_signed, int32_t zero, int64_t n, int16_t* dst);
/// dst[2 i] = even[i], dst[2 i + 1] = odd[i], or 0 where odd is null.
void interleave_i16(const int16_t* even, const int16_t* odd, int64_t n, int16_t* dst);

}  // namespace treadle::kernels
