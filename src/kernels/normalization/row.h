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
/// y = (x - mean) * multiplier + addend
template <typename T>
void row_affine(const T* x, int64_t n, T mean, T multiplier, T addend, T* y);

}  // namespace treadle::kernels
