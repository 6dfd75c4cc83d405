// The micro-kernel of convolutions with channels innermost: a few pixels times a panel of filters, read from the image in place.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// C(r, m) = clamp(bias(m) + sum over s, k of A[pixel(r) + segments[s] + k] * B[(s * length + k) * panel width + m] + residual(r, m))
///
/// A panel of few columns may be folded: a row of it holds the weights of `fold` k's, those of each column side by side, so that a vector's
/// lanes all have something to do.
struct NhwcTile {
  const float* A;
  int64_t a_row;            ///< pixel(r) = r * a_row, unless there are
  const int64_t* pixels;    ///< their places, in floats from A: neighbours in C may lie in different lines of A; or null
  const int64_t* segments;  ///< where the runs of a pixel's window begin, in floats from the pixel
  int64_t num_segments, length;
  const float* B;   ///< the panel
  int64_t vectors;  ///< its width
  float* C;
  int64_t ldc, rows, columns;  ///< columns: how many of the panel exist
  const float* bias;           ///< of the panel's first column, or null
  const float* residual;       ///< as C, or null; may be C
  int64_t residual_row;        ///< floats from row to row of the residual
  float low, high;
  int fold = 1;                 ///< nhwc_fold's; `length` is a multiple of it
  const float* next = nullptr;  ///< what is read after this panel, and as large: fetched into L2 meanwhile
};

/// How many k's share a row of a panel: 1, or 2 or 4 for one vector of which a half or a quarter would do.
int nhwc_fold(int64_t columns, int64_t length);

/// Every element is one sum in the order of its segments, whatever `rows` is; folded, `fold` sums.
void nhwc_tile(const NhwcTile& job);

}  // namespace treadle::kernels
