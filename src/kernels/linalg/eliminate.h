// Elimination of small square matrices: determinants and inverses, in float64 by rows.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// The determinant of `a` [m, m], by Gaussian elimination with partial pivoting; `a` is overwritten.
double determinant(double* a, int64_t m);

/// Makes `a` [m, m] its inverse, by Gauss-Jordan elimination with partial pivoting. A singular matrix gets infinities and NaN.
/// `pivots` has room for m numbers.
void invert(double* a, int64_t m, int64_t* pivots);

}  // namespace treadle::kernels
