// Inner loops of the normalizations, compiled for each instruction set.
#pragma once

#include <cstdint>

namespace treadle::kernels {

struct RowStatistics {
  double mean, variance;  ///< `variance` is the biased variance
};
/// Computes the statistics in two passes: the second sums the squares of x - mean, which avoids cancellation.
template <typename T>
RowStatistics row_statistics(const T* x, int64_t n);
/// Computes y = (x - mean) * factor * scale + bias; scale and bias may be null.
template <typename T>
void row_normalize(const T* x, int64_t n, T mean, T factor, const T* scale, const T* bias, T* y);
/// Computes the layer normalization of `rows` rows of n elements; short rows are processed several at a time. @param scale, bias, means,
/// inverse_deviations  may be null
template <typename T>
void layer_norm_rows(int64_t rows, int64_t n, const T* x, const T* scale, const T* bias, double epsilon, T* y, T* means,
                     T* inverse_deviations);
/// Computes y = (x - mean) * multiplier + addend.
template <typename T>
void row_affine(const T* x, int64_t n, T mean, T multiplier, T addend, T* y);

}  // namespace treadle::kernels
