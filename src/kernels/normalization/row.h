// The inner loops of the normalisations, compiled for each instruction set.
#pragma once

#include <cstdint>

namespace treadle::kernels {

struct RowStatistics {
  double mean, variance;  ///< of the population
};
/// Two passes: the variance is that of x - mean, without cancellation.
template <typename T>
RowStatistics row_statistics(const T* x, int64_t n);
/// y = (x - mean) * factor * scale + bias; scale and bias may be null.
template <typename T>
void row_normalize(const T* x, int64_t n, T mean, T factor, const T* scale, const T* bias, T* y);
/// Layer normalisation of `rows` rows of n; several pass side by side where they are short.
/// @param scale, bias, means, inverse_deviations  may be null
template <typename T>
void layer_norm_rows(int64_t rows, int64_t n, const T* x, const T* scale, const T* bias, double epsilon, T* y, T* means,
                     T* inverse_deviations);
/// y = (x - mean) * multiplier + addend
template <typename T>
void row_affine(const T* x, int64_t n, T mean, T multiplier, T addend, T* y);

}  // namespace treadle::kernels
