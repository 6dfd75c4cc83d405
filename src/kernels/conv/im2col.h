// The columns of a convolution, written into GEMM panels.
#pragma once

#include <cstdint>

#include "kernels/conv/conv.h"

namespace treadle::kernels {

/// Columns that im2col_panel takes at most: a list of them is on the stack.
inline constexpr int64_t kMaxPanelWidth = 1024;

/// Writes outputs [begin, begin + columns) of one image and group as a panel: C * kernel rows of `width` elements, zero behind `columns`.
/// @pre columns <= kMaxPanelWidth
/// @param x  the group's first channel of the image: channels of window.in_size() elements
template <typename T>
void im2col_panel(const Window& window, int64_t channels, const T* x, T pad_value, int64_t begin, int64_t columns, int64_t width, T* panel);

}  // namespace treadle::kernels
