// Finds the next element beyond a bound, for TopK.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Returns the index of the first element that is NaN or above (below) `bound`; n if there is none. Runs on the calling thread. No
/// alignment is needed. T is float, double, or an integer of 8 to 64 bits.
template <typename T>
int64_t find_above(const T* x, int64_t n, T bound);
template <typename T>
int64_t find_below(const T* x, int64_t n, T bound);

}  // namespace treadle::kernels
