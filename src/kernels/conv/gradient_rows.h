// The inner loops of convolutions' gradients with channels innermost: rows gathered from an image, and sums over rows by channel.
#pragma once

#include <cstdint>

#include "kernels/conv/window.h"

namespace treadle::kernels {

/// to[i * width + k] = x[offsets[i] + k] for k < columns, 0 beyond them; all 0 where an offset is kNoRow.
/// @param width  a multiple of the vectors' lanes; `to` has whole rows of it
inline constexpr int64_t kNoRow = INT64_MIN;
void gather_rows(const float* x, const int64_t* offsets, int64_t count, int64_t columns, int64_t width, float* to);

/// A row of taps of a depthwise convolution: dw[k * C + c] += sum over outputs of dy[ow * C + c] * x[iw(ow, k) * x_step + c], channels
/// [begin, end).
/// @param x  the row of the image that the taps see; taps outside of it add nothing
void depthwise_gradient_row(const Window& window, int64_t C, const float* dy, const float* x, int64_t begin, int64_t end, float* dw);

}  // namespace treadle::kernels
