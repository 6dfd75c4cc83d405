// Looking for the next element beyond a bound: TopK.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// The index of the first element that is above (below) `bound` or NaN; n without one. One thread; no alignment needed.
/// T is float, double, or an integer of 8 to 64 bits.
template <typename T>
int64_t find_above(const T* x, int64_t n, T bound);
template <typename T>
int64_t find_below(const T* x, int64_t n, T bound);

}  // namespace treadle::kernels
