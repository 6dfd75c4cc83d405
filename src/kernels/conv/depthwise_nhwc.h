// Depthwise convolution in NHWC: vectors of channels, and a few adjacent outputs at a time in registers.
#pragma once

#include <cstdint>

#include "kernels/conv/window.h"

namespace treadle::kernels {

/// Ring buffer of image rows [width][C]: row r is stored at index r % count. All rows that a window reads must be present. A whole image is
/// a ring that holds all its rows.
struct RowRing {
  const float* data;
  int64_t count;
  int64_t step;  ///< pixel stride in floats; C if contiguous
};

/// Computes channels [begin, end) of one output row: y[ow * y_step + c] = clamp(bias[c] + sum over taps of x * weights[tap * C + c] +
/// residual).
/// @param window  kernel[0] must be 1
/// @param oh  the output row
/// @param y, residual  the start of this row; pixels of the residual are C floats apart. bias and residual may be null
void depthwise_nhwc_row(const Window& window, int64_t C, const RowRing& x, const float* weights, const float* bias, const float* residual,
                        float low, float high, int64_t oh, int64_t begin, int64_t end, float* y, int64_t y_step);

/// Returns the number of channels of a block. A block is computed for several rows, so that input rows shared by windows stay in L1.
int64_t depthwise_nhwc_block(const Window& window);

}  // namespace treadle::kernels
