// The micro-kernel of NHWC convolutions: multiplies a few pixels, read from the image in place, by a panel of filters.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// C(r, m) = clamp(bias(m) + sum over s, k of A[pixel(r) + segments[s] + k] * B[(s * length + k) * panel width + m] + residual(r, m))
///
/// A panel with few columns may be folded, so that no lanes of a vector are idle: a row then contains, for each column, the weights of
/// `fold` consecutive k in adjacent lanes.
struct NhwcTile {
  const float* A;
  int64_t a_row;            ///< row stride: pixel(r) = r * a_row, if `pixels` is null
  const int64_t* pixels;    ///< offset of each pixel in floats from A, or null; adjacent rows of C may be in different lines of the image
  const int64_t* segments;  ///< offsets of a window's segments in floats from the pixel
  int64_t num_segments, length;
  const float* B;   ///< address of the panel
  int64_t vectors;  ///< width of the panel in vectors
  float* C;
  int64_t ldc, rows, columns;  ///< columns: number of columns of the panel, without padding
  const float* bias;           ///< bias of the panel's columns, or null
  const float* residual;       ///< same layout as C, or null; may be C
  int64_t residual_row;        ///< row stride of the residual in floats
  float low, high;
  int fold = 1;                 ///< number of k per row of the panel, from nhwc_fold(); must divide `length`
  const float* next = nullptr;  ///< the memory that is read after this panel and has its size; it is prefetched into L2
};

/// Returns how many consecutive k share a row of a panel: 1, or 2 or 4 if the columns fill at most a half or a quarter of one vector.
int nhwc_fold(int64_t columns, int64_t length);

/// Computes the tile. Sums each element in the order of its segments, whatever the number of rows; a folded panel has `fold` partial sums.
void nhwc_tile(const NhwcTile& job);

}  // namespace treadle::kernels
