// Products of float32 matrices by tiles of AMX, with float32's exactness: every number is the sum of three bfloat16 numbers, its parts,
// whose products the processor adds up in float32.
//
// x = high + middle + low holds exactly: three times 8 bits of mantissa are float32's 24. Of the nine products of parts the three smallest,
// below 2^-26 of the product together, are left out; six are computed, each exactly. A tile adds up 32 terms before they join the sum, so
// that sums are rounded less often than in chains of float32. NVIDIA's and Intel's libraries call the method BF16x9 and BF16x3 (Henry,
// Tang, Heinecke: "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations", 2019).
//
// The processor takes numbers below 2^-126 for zero, and so parts of numbers below 2^-102 are lost, and infinity has parts that are NaN:
// can_split() tells by the largest magnitudes of both matrices where neither matters.
#pragma once

#include <cstdint>

#include "kernels/gemm/tile.h"

namespace treadle::kernels {

/// Numbers of A or B that become three tiles: 16 rows, or columns, of 32 terms. The tiles of the high, middle and low parts lie behind each
/// other; what is missing at an edge is zero.
constexpr int64_t kSplitRows = 16, kSplitTerms = 32;
constexpr int64_t kSplitTiles = 3 * kSplitRows * kSplitTerms;  ///< bfloat16 numbers

/// A number of A or B: magnitude, as its bits. Those of infinity and NaN are the largest.
using Magnitude = uint32_t;

/// A's tiles of `rows` <= 16 rows and `terms` <= 32 columns.
/// @param a_row, a_col  elements from row to row and from column to column; one of them is 1
/// @return the largest magnitude
Magnitude split_a(const float* A, int64_t a_row, int64_t a_col, int64_t rows, int64_t terms, uint16_t* to);
/// B's tiles of `terms` <= 32 rows and `columns` <= 16 columns.
Magnitude split_b(const float* B, int64_t b_row, int64_t b_col, int64_t terms, int64_t columns, uint16_t* to);
/// A number of B's tiles: the sum of its parts.
float number_of_b(const uint16_t* tiles, int64_t term, int64_t column);
/// The largest magnitude in `rows` rows of `columns` contiguous numbers, ld apart.
Magnitude largest_magnitude(const float* data, int64_t ld, int64_t rows, int64_t columns);
/// Whether the processor has what this file needs.
bool has_split_tiles();
/// Whether numbers of such magnitudes have parts, and sums of products that are finite.
bool have_parts(Magnitude largest);
/// Whether products of such numbers are as exact by their parts as in float32.
bool can_split(Magnitude largest_of_a, Magnitude largest_of_b);

/// 32 rows of A by 32 columns of B, for `steps` times 32 terms: of each step, the tiles of the upper or left 16 and then those of the
/// others.
struct SplitBlock {
  const uint16_t *A, *B;
  int64_t steps;
  bool tall, wide;  ///< more than 16 rows, and columns; otherwise the tiles of the others are not looked at
  float* sums;      ///< rows of 32, or of 16 if not wide
  /// Lines of 64 bytes to fetch into L2 meanwhile: `later_lines` a step, from `later` on.
  const char* later = nullptr;
  int64_t later_lines = 0;
};

}  // namespace treadle::kernels
