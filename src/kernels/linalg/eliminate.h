// Determinants and inverses of small square matrices in float64, by elimination on rows.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Returns the determinant of `a` [m, m] by Gaussian elimination with partial pivoting. Overwrites `a`.
double determinant(double* a, int64_t m);

/// Inverts `a` [m, m] in place by Gauss-Jordan elimination with partial pivoting. A singular matrix becomes infinities and NaN.
/// @param pivots  working memory for m numbers
void invert(double* a, int64_t m, int64_t* pivots);

}  // namespace treadle::kernels
