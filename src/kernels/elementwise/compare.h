// Comparisons of 64-bit integers, for which the baseline instruction set has no vectors.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// dst[i] = a[i] == b[i], a[i] < b[i] or a[i] <= b[i]. One thread; no alignment needed.
void equal(const int64_t* a, const int64_t* b, bool* dst, int64_t n);
void less(const int64_t* a, const int64_t* b, bool* dst, int64_t n);
void less_or_equal(const int64_t* a, const int64_t* b, bool* dst, int64_t n);
/// dst[i] = x[i] != 0
void nonzero(const int64_t* x, bool* dst, int64_t n);

}  // namespace treadle::kernels
