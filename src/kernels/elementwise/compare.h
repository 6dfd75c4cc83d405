// Comparisons and shifts for which the baseline instruction set has no vector instructions, or only slow ones.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Set dst[i] to a[i] == b[i], a[i] < b[i] or a[i] <= b[i], on the calling thread. No alignment is needed.
void equal(const int64_t* a, const int64_t* b, bool* dst, int64_t n);
void less(const int64_t* a, const int64_t* b, bool* dst, int64_t n);
void less_or_equal(const int64_t* a, const int64_t* b, bool* dst, int64_t n);
/// Sets dst[i] to x[i] != 0.
void nonzero(const int64_t* x, bool* dst, int64_t n);
void nonzero(const float* x, bool* dst, int64_t n);
/// Sets dst[i] to true if x[i] is +Inf and `positive`, or -Inf and `negative`.
void infinite(const float* x, bool negative, bool positive, bool* dst, int64_t n);

/// Set dst[i] to x[i] << by[i] or x[i] >> by[i]; 0 if by[i] is at least the number of bits of the type. dst may be x or by.
void shift_left(const uint32_t* x, const uint32_t* by, uint32_t* dst, int64_t n);
void shift_left(const uint64_t* x, const uint64_t* by, uint64_t* dst, int64_t n);
void shift_right(const uint32_t* x, const uint32_t* by, uint32_t* dst, int64_t n);
void shift_right(const uint64_t* x, const uint64_t* by, uint64_t* dst, int64_t n);

}  // namespace treadle::kernels
