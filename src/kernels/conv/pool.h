// Pooling over one to three spatial axes, planes of window.in_size() elements to planes of window.out_size(). T is float, double, or for
// max_pool an 8-bit integer.
#pragma once

#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/conv/window.h"

namespace treadle::kernels {

/// Extent of one axis of a pool's output.
/// @param ceil_mode  rounds up, but never to a window that starts behind the input and its begin pad (ONNX, PyTorch).
int64_t pool_out_extent(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t pad_begin, int64_t pad_end, bool ceil_mode);

/// Elements of output o's window along one axis that count for its mean: those inside the input, or inside the input and its pads.
int64_t pool_elements(const Window& window, int axis, int64_t o, bool include_pad);

/// y = the largest element in each window; NaN wins.
/// @param indices       null, or as y: the place of the element in the whole x, planes counted on
/// @param column_major  indices count the spatial axes from the first one (ONNX's storage_order = 1)
template <typename T>
void max_pool(const Window& window, int64_t planes, const T* x, T* y, int64_t* indices, bool column_major, ThreadPool* pool);

/// y = the mean of each window: over the elements inside the input, or inside the input and its pads.
template <typename T>
void average_pool(const Window& window, int64_t planes, const T* x, T* y, bool count_include_pad, ThreadPool* pool);

/// y = (sum |x|^p)^(1/p) over each window.
template <typename T>
void lp_pool(const Window& window, int64_t planes, const T* x, T* y, int64_t p, ThreadPool* pool);

}  // namespace treadle::kernels
