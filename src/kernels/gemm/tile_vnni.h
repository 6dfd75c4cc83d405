// The micro-kernel of byte products: unsigned A, signed B, int32 sums.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemm_bytes.h"

namespace treadle::kernels {

/// A product of rows [0, rows) of A and one panel of 64 columns.
struct ByteTile {
  const uint8_t* A;
  int64_t lda;
  const int8_t* B;  // for each four consecutive k, four bytes for each of 64 columns
  int64_t quads;
  int32_t* C;  // sums in rows of 64 columns
  int64_t rows;
};
void byte_tile_plain(const ByteTile& tile);
/// Computes a tile. @pre the CPU has AVX2, and AVX-VNNI if `vnni`
void byte_tile_avx2(const ByteTile& tile, bool vnni);
/// Computes a tile. @pre the CPU has AVX512-VNNI
void byte_tile_avx512vnni(const ByteTile& tile);
/// Computes a tile with the given instruction set. @pre the CPU has it
void byte_tile(const ByteTile& tile, ByteInstructions with);

}  // namespace treadle::kernels
