// Depthwise convolution with channels innermost: vectors of channels, a few neighbouring outputs at a time in registers.
#pragma once

#include <cstdint>

#include "kernels/conv/window.h"

namespace treadle::kernels {

/// Rows of an image in a ring: row r [width][C] is the r % count-th. Those that a window reaches lie in it at once; a whole image is one,
/// too.
struct RowRing {
  const float* data;
  int64_t count;
  int64_t step;  ///< floats from pixel to pixel, C if nothing lies between them
};

/// Channels [begin, end) of one output row: y[ow * y_step + c] = clamp(bias[c] + sum over taps of x * weights[tap * C + c] + residual).
/// @param window  kernel[0] is 1
/// @param oh  the row
/// @param y, residual  the row itself, the residual's pixels C floats apart; bias and residual may be null
void depthwise_nhwc_row(const Window& window, int64_t C, const RowRing& x, const float* weights, const float* bias, const float* residual,
                        float low, float high, int64_t oh, int64_t begin, int64_t end, float* y, int64_t y_step);

/// How many channels pass at once over several rows, so that the rows under a window, which the next output row shares, stay in L1.
int64_t depthwise_nhwc_block(const Window& window);

}  // namespace treadle::kernels
