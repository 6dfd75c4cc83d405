// The micro-kernel of products with bfloat16 (or float16) operands and float32 sums: multiplies a few rows of a matrix, or pixels of an
// image, by a panel of weights.
#pragma once

#include <cstdint>

#include "kernels/gemm/tile.h"

namespace treadle::kernels {

/// Computes C(r, n) = f(alpha sum over s, k of A[pixel(r) + segments[s] + k] * B(s * length + k, n) + beta bias + residual).
struct Bf16Tile {
  const uint16_t* A;        ///< bits of bfloat16 or float16
  int64_t a_row;            ///< row stride: pixel(r) = r * a_row, if `pixels` is null
  const int64_t* pixels;    ///< offset of each row in elements from A, or null
  const int64_t* segments;  ///< offsets of a row's segments in elements
  int64_t num_segments;
  int64_t b_segments;  ///< number of segments of B: segment s of a row is multiplied by segment (b_first + s) % b_segments
  int64_t b_first;
  int64_t length;     ///< number of elements of a segment; even
  const uint32_t* B;  ///< the panel: one row for each pair of k, one word for each column, with the even k in its lower half
  /// Members of the float32 job that apply here too: vectors, C, ldc, rows, columns and the epilogue. A, B and K are ignored.
  TileJob<float> to;
  /// If `line` is not 0, pixels are a_row apart in image rows of `line` pixels, with gaps of `gap` readable pixels between the rows. The
  /// first pixel has the index first_in_line within its row. AMX computes the pixels in the gaps too and drops them.
  int64_t line = 0, gap = 0, first_in_line = 0;
  /// If nonzero, A is stored as AMX tiles (tile_amx.h), and this is the number of elements from one band of 16 rows to the next. The first
  /// row of a band is a multiple of 16. @pre the CPU has AMX
  int64_t a_tiles = 0;
  bool emulated = false;    ///< do not use the CPU's bfloat16 instructions
  bool is_float16 = false;  ///< A and B are float16, widened to float32 before they are multiplied
};

/// Returns true if the job runs on AMX.
bool uses_amx(const Bf16Tile& job);

/// Uses the CPU's bfloat16 dot products (AVX512-BF16), if it has them and the job does not forbid it; otherwise widens operands to float32.
/// Products are exact either way, but sums are rounded differently, and the CPU flushes denormals to zero.
///
/// Each element is summed in the order of its segments, whatever the number of rows. Applies only the activations none, relu and clip.
void bf16_tile(const Bf16Tile& job);

/// Runs bf16_tile() in parts of the depth, so that a part of the panel stays in L2 while all rows use it. Then applies the activation.
void run_bf16_tile(const Bf16Tile& job);

/// Rounds to the nearest bfloat16, ties to even; NaN stays NaN. `rest`, if not null, gets the rounded remainders: the sum of both has 16
/// bits of mantissa. The remainder is 0 if a number is not finite or becomes infinite.
void to_bf16(const float* src, int64_t n, uint16_t* dst, uint16_t* rest);

/// Rounds up to 16 rows of K numbers, lda apart, into tiles of 2 * depth columns (tile_amx.h), padded with zeros after K.
/// @param hi  memory for tiles of even_columns columns, a multiple of 2 * depth
/// @param lo  memory for tiles of the remainders, as in to_bf16(); or null
void to_bf16_tiles(const float* rows, int64_t lda, int64_t count, int64_t K, int64_t even_columns, int64_t depth, uint16_t* hi,
                   uint16_t* lo);

/// Interleaves pairs of float32 rows, ld apart, as bfloat16: K x width floats become (K + 1) / 2 x width words. An odd last row is paired
/// with zeros.
/// @param rest  true: store the remainders of rounding, as in to_bf16(), instead of the rounded numbers
void pair_rows(const float* rows, int64_t ld, int64_t K, int64_t width, bool rest, uint32_t* dst);
/// Like pair_rows(), in float16: rounds to nearest, ties to even; numbers beyond its range become infinity.
void pair_float16_rows(const float* rows, int64_t ld, int64_t K, int64_t width, uint32_t* dst);

}  // namespace treadle::kernels
