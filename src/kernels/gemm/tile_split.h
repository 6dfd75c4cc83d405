// Products of float32 matrices by AMX with the precision of float32: each number is split into three bfloat16 parts, and products of parts
// are summed in float32.
//
// x = high + middle + low is exact: 3 x 8 bits of mantissa are float32's 24. Of the nine products of parts, the three smallest, together
// below 2^-26 of the product, are dropped. A tile sums 32 terms before they join the total, so that sums are rounded less often than in
// float32. Intel and NVIDIA call the method BF16x3 and BF16x9 (Henry, Tang, Heinecke: "Leveraging the bfloat16 artificial intelligence
// datatype for higher-precision computations", 2019).
//
// The CPU flushes numbers below 2^-126 to zero, which loses parts of numbers below 2^-102, and parts of infinity are NaN. can_split()
// returns true if, given the largest magnitudes of both matrices, neither effect matters.
#pragma once

#include <cstdint>

#include "kernels/gemm/tile.h"

namespace treadle::kernels {

/// A tile of one part has 16 rows of A (or columns of B) by 32 terms. The tiles of the high, middle and low parts follow each other. Edges
/// are padded with zeros.
constexpr int64_t kSplitRows = 16, kSplitTerms = 32;
constexpr int64_t kSplitTiles = 3 * kSplitRows * kSplitTerms;  ///< bfloat16 elements of a high, a middle and a low tile together

/// The bits of a float's magnitude, which are ordered like the magnitudes; infinity and NaN are the largest.
using Magnitude = uint32_t;

/// Splits `rows` <= 16 rows and `terms` <= 32 columns of A into tiles.
/// @param a_row, a_col  strides of rows and columns in elements; one of them is 1
/// @return the largest magnitude
Magnitude split_a(const float* A, int64_t a_row, int64_t a_col, int64_t rows, int64_t terms, uint16_t* to);
/// Splits `terms` <= 32 rows and `columns` <= 16 columns of B into the tiles of three parts.
Magnitude split_b(const float* B, int64_t b_row, int64_t b_col, int64_t terms, int64_t columns, uint16_t* to);
/// Returns one element of B: the sum of its parts.
float number_of_b(const uint16_t* tiles, int64_t term, int64_t column);
/// Returns the largest magnitude in `rows` rows of `columns` contiguous numbers, ld apart.
Magnitude largest_magnitude(const float* data, int64_t ld, int64_t rows, int64_t columns);
/// Returns true if the CPU supports split_a(), split_b() and AmxTiles::multiply_split().
bool has_split_tiles();
/// Returns true if numbers up to this magnitude can be split into parts, and sums of their products stay finite.
bool have_parts(Magnitude largest);
/// Returns true if products of the parts are as precise as float32 for these magnitudes.
bool can_split(Magnitude largest_of_a, Magnitude largest_of_b);

/// A product of up to 32 rows of A by up to 32 columns of B, which sums `steps` * 32 terms. In A's memory, each step of 32 terms has three
/// tiles (high, middle, low) of rows 0 to 15, then three tiles of rows 16 to 31. B's memory has the same layout, with columns.
struct SplitBlock {
  const uint16_t *A, *B;
  int64_t steps;
  bool tall, wide;  ///< true if there are more than 16 rows or columns; if false, the tiles of the second 16 are not read
  float* sums;      ///< sums in rows of 32 columns, or of 16 if `wide` is false
  /// Lines of 64 bytes to prefetch into L2: `later_lines` per step, beginning at `later`.
  const char* later = nullptr;
  int64_t later_lines = 0;
};

}  // namespace treadle::kernels
