// Pooling over one to three spatial axes, from planes of window.in_size() elements to planes of window.out_size(). T is float, double, or
// for max_pool() also an 8-bit integer.
#pragma once

#include <cstdint>

#include "core/threads/thread_pool.h"
#include "kernels/conv/window.h"

namespace treadle::kernels {

/// Returns the extent of one axis of a pool's output.
/// @param ceil_mode  round up, but omit a window that would start after the input (as ONNX and PyTorch do)
int64_t pool_out_extent(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t pad_begin, int64_t pad_end, bool ceil_mode);

/// Returns how many elements of output o's window along one axis are counted for the mean: those in the input or, with include_pad, in the
/// input and its pads.
int64_t pool_elements(const Window& window, int axis, int64_t o, bool include_pad);

/// Sets y to the maximum of each window; NaN counts as the largest number.
/// @param indices       null, or receives the index of each maximum in x, counted over all planes
/// @param column_major  indices are column-major (ONNX: storage_order = 1)
template <typename T>
void max_pool(const Window& window, int64_t planes, const T* x, T* y, int64_t* indices, bool column_major, ThreadPool* pool);

/// Sets y to the mean of each window over its elements in the input or, with count_include_pad, in the input and its pads.
template <typename T>
void average_pool(const Window& window, int64_t planes, const T* x, T* y, bool count_include_pad, ThreadPool* pool);

/// Sets y to (sum |x|^p)^(1/p) over each window.
template <typename T>
void lp_pool(const Window& window, int64_t planes, const T* x, T* y, int64_t p, ThreadPool* pool);

}  // namespace treadle::kernels
