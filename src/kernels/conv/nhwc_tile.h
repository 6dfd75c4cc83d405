// The micro-kernel of convolutions with channels innermost: a few pixels times a panel of filters, read from the image in place.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// C(r, m) = clamp(bias(m) + sum over s, k of A[r * a_row + segments[s] + k] * B[(s * length + k) * panel width + m] + residual(r, m))
struct NhwcTile {
  const float* A;           ///< the first pixel
  int64_t a_row;            ///< floats from one output's pixel to the next one's
  const int64_t* segments;  ///< where the runs of a pixel's window begin, in floats from the pixel
  int64_t num_segments, length;
  const float* B;   ///< the panel
  int64_t vectors;  ///< its width
  float* C;
  int64_t ldc, rows, columns;  ///< columns: how many of the panel exist
  const float* bias;           ///< of the panel's first column, or null
  const float* residual;       ///< as C, or null
  float low, high;
};

/// Every element is one sum in the order of its segments, whatever `rows` is.
void nhwc_tile(const NhwcTile& job);

}  // namespace treadle::kernels
