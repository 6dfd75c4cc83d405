// The micro-kernel of integer products: int16 operands, int32 sums.
#pragma once

#include <cstdint>

namespace treadle::kernels {

struct TileJobI16 {
  const int16_t* A;                  // rows of A, each with `pairs` pairs of k
  const int16_t* B;                  // the panel: for each pair of k, `vectors` vectors of pairs
  const int64_t* offsets = nullptr;  // for each pair of k, the offset of its vectors in B; null: they are contiguous
  int64_t pairs;
  int64_t vectors;
  int32_t* C;  // address of row 0 in the panel's first column
  int64_t ldc, row_begin, row_end, columns;
};
void gemm_tile_rows_i16(const TileJobI16& job);

/// Computes dst[i] = src[i] - zero, for signed or unsigned bytes.
void widen_to_i16(const void* src, bool is_signed, int32_t zero, int64_t n, int16_t* dst);

/// Two rows of signed or unsigned bytes whose elements are `step` apart.
struct BytePairs {
  const void* even;
  const void* odd;  // null: the row is all zeros
  int64_t step = 1;
  bool is_signed = false;
  int32_t zero = 0;
};
/// Computes dst[2 i] = even[i * step] - zero and dst[2 i + 1] = odd[i * step] - zero, or 0 if odd is null.
void pairs_to_i16(const BytePairs& pairs, int64_t n, int16_t* dst);

}  // namespace treadle::kernels
