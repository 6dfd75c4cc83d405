// The interface between the pools over planes and their inner loops, which are compiled for each instruction set.
#pragma once

#include <cstdint>

#include "kernels/conv/window.h"

namespace treadle::kernels {

/// Maximum number of elements of an input row from the first to the last tap of a window.
inline constexpr int64_t kLongestReach = 512;
inline bool fits_pool_planes(const Window& w) { return (w.kernel[2] - 1) * w.dilation[2] + 1 <= kLongestReach; }

/// These functions compute planes [begin, end) of max_pool() and average_pool() (kernels/conv/pool.h); x has `planes` planes. T is float or
/// double, for max_planes() also an 8-bit integer.
template <typename T>
void max_planes(const Window& window, int64_t begin, int64_t end, int64_t planes, const T* x, T* y);
template <typename T>
void average_planes(const Window& window, int64_t begin, int64_t end, int64_t planes, bool include_pad, const T* x, T* y);

}  // namespace treadle::kernels
