// The micro-kernel of products whose operands are bfloat16 (or float16) and whose sums are float32: a few rows of a matrix, or pixels of an
// image, times a panel of weights.
#pragma once

#include <cstdint>

#include "kernels/gemm/tile.h"

namespace treadle::kernels {

/// C(r, n) = f(alpha sum over s, k of A[pixel(r) + segments[s] + k] * B(s * length + k, n) + beta bias + residual)
struct Bf16Tile {
  const uint16_t* A;        ///< bits of bfloat16, or of float16
  int64_t a_row;            ///< pixel(r) = r * a_row, unless there are
  const int64_t* pixels;    ///< their places, in elements from A; or null
  const int64_t* segments;  ///< where a row's runs begin, in elements from the row
  int64_t num_segments;
  int64_t b_segments;  ///< runs that B has: run s of a row meets run (b_first + s) % b_segments
  int64_t b_first;
  int64_t length;     ///< of a run; even
  const uint32_t* B;  ///< the panel: a row for each two of k, a word for each column, the even k in its lower half
  /// vectors, C, ldc, rows, columns and the epilogue, as of a float32 product; its A, B and K are not looked at.
  TileJob<float> to;
  /// If not 0: pixels are a_row apart, but for `gap` places between lines of `line` of them, where A can be read all the same; the first
  /// pixel is number first_in_line of its line. Tiles take what is in the gaps along.
  int64_t line = 0, gap = 0, first_in_line = 0;
  /// If not 0: A lies in tiles (tile_amx.h), this many elements from those of 16 rows to the next; rows begin at multiples of 16, and the
  /// processor has AMX.
  int64_t a_tiles = 0;
  bool emulated = false;    ///< do without the processor's bfloat16 products
  bool is_float16 = false;  ///< A and B are float16, which is widened to float32 and multiplied there
};

/// Whether tiles of AMX compute it.
bool uses_amx(const Bf16Tile& job);

/// Products of pairs are the processor's where it has them (AVX512-BF16). Elsewhere, and where a tile asks for it, operands are widened to
/// float32 and multiplied there: each product is exact either way, but sums are rounded differently, and the processor's products take
/// denormal operands and results for zero.
///
/// Every element is one sum in the order of its segments, whatever `rows` is; activations other than none, relu and clip are left out.
void bf16_tile(const Bf16Tile& job);

/// bf16_tile in parts of the depth, so that a part of the panel stays in L2 while all rows pass, then the activation.
void run_bf16_tile(const Bf16Tile& job);

/// Rounds to the nearest bfloat16, ties to even; NaN stays NaN. If `rest` is given, it gets what is left of each number, rounded too: the
/// sum of the two has 16 bits of mantissa. Numbers that are not finite, or become so, leave zero.
void to_bf16(const float* src, int64_t n, uint16_t* dst, uint16_t* rest);

/// Up to 16 rows of K numbers, lda apart, rounded into tiles of 2 * depth columns (tile_amx.h); zeros behind K.
/// @param hi  tiles for all columns of even_columns, a multiple of 2 * depth
/// @param lo  the same for what is left of each number, as to_bf16 does; or null
void to_bf16_tiles(const float* rows, int64_t lda, int64_t count, int64_t K, int64_t even_columns, int64_t depth, uint16_t* hi,
                   uint16_t* lo);

/// Rows of float32, ld apart, as rows of pairs: K x width floats become (K + 1) / 2 x width words, a missing last row is zero.
/// @param rest  take what rounding leaves, as to_bf16 does, in place of the rounded numbers
void pair_rows(const float* rows, int64_t ld, int64_t K, int64_t width, bool rest, uint32_t* dst);
/// The same in float16: the nearest one, ties to even; beyond its range infinity.
void pair_float16_rows(const float* rows, int64_t ld, int64_t K, int64_t width, uint32_t* dst);

}  // namespace treadle::kernels
