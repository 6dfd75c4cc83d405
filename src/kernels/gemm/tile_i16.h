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

}  // namespace treadle::kernels
