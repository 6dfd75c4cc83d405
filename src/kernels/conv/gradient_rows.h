// Inner loops of the gradients of NHWC convolutions: they gather rows of an image, or sum over a row per channel.
#pragma once

#include <cstdint>

#include "kernels/conv/window.h"

namespace treadle::kernels {

/// Sets to[i * width + k] = x[offsets[i] + k] for k < columns, and 0 for other k. A row is all 0 if its offset is kNoRow. @param width  row
/// stride of `to`, a multiple of the vector length
inline constexpr int64_t kNoRow = INT64_MIN;
void gather_rows(const float* x, const int64_t* offsets, int64_t count, int64_t columns, int64_t width, float* to);

/// Adds the gradient of one row of taps of a depthwise convolution: dw[k * C + c] += sum over outputs of dy[ow * C + c] * x[iw(ow, k) * C +
/// c], for channels [begin, end). @param x  the image row that the taps read; taps outside of it are skipped
void depthwise_gradient_row(const Window& window, int64_t C, const float* dy, const float* x, int64_t begin, int64_t end, float* dw);

}  // namespace treadle::kernels
