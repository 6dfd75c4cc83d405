// im2col: writes a convolution's columns into GEMM panels.
#pragma once

#include <cstdint>

#include "kernels/conv/conv.h"

namespace treadle::kernels {

/// Maximum width of a panel, since im2col_panel() keeps a list of its columns on the stack.
inline constexpr int64_t kMaxPanelWidth = 1024;

/// Writes outputs [begin, begin + columns) of one image and group as a panel of C * kernel rows of `width` elements, zero beyond `columns`.
/// @pre columns <= kMaxPanelWidth
/// @param x  first channel of the group in the image: channels of window.in_size() elements
template <typename T>
void im2col_panel(const Window& window, int64_t channels, const T* x, T pad_value, int64_t begin, int64_t columns, int64_t width, T* panel);

}  // namespace treadle::kernels
