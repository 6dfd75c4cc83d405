// The micro-kernel of convolutions with channels innermost: a few pixels times a panel of filters, read from the image in place.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// C(r, m) = clamp(bias(m) + sum over s, k of A[pixel(r) + segments[s] + k] * B[(s * length + k) * panel width + m] + residual(r, m))
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
  const float* next = nullptr;  ///< what is read after this panel, and as large: fetched into L2 meanwhile
};

/// Every element is one sum in the order of its segments, whatever `rows` is.
void nhwc_tile(const NhwcTile& job);

}  // namespace treadle::kernels
