// Normalisations. y may be x. T is float or double; statistics of float rows are summed in blocks and joined in double.
#pragma once

#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/reduce/reduce.h"

namespace treadle::kernels {

/// y = (x - mean) / sqrt(variance + epsilon) * scale + bias for each of `rows` rows of `length`.
/// @param scale, bias  `length` values, or null for 1 and 0
/// @param mean, inverse_deviation  null, or `rows` values that receive the statistics
template <typename T>
void layer_norm(int64_t rows, int64_t length, const T* x, const T* scale, const T* bias, T epsilon, T* y, T* mean, T* inverse_deviation,
                ThreadPool* pool);

/// y = x / sqrt(mean(x^2) + epsilon) * scale for each row.
template <typename T>
void rms_norm(int64_t rows, int64_t length, const T* x, const T* scale, T epsilon, T* y, ThreadPool* pool);

/// y[n, c, i] = (x[n, c, i] - mean(c)) * multiplier(c) + bias(c), with multiplier = scale / sqrt(variance + epsilon).
template <typename T>
void batch_norm(int64_t N, int64_t C, int64_t inner, const T* x, const T* scale, const T* bias, const T* mean, const T* variance, T epsilon,
                T* y, ThreadPool* pool);

/// Normalises each of N * groups rows of C / groups channels by `inner`, then scales and shifts per channel (C values each).
/// Instance normalisation has C groups.
template <typename T>
void group_norm(int64_t N, int64_t C, int64_t groups, int64_t inner, const T* x, const T* scale, const T* bias, T epsilon, T* y,
                ThreadPool* pool);

/// y = x / (bias + alpha / size * sum of x^2 over the `size` channels around)^beta, as ONNX's LRN. y must not be x.
template <typename T>
void lrn(int64_t N, int64_t C, int64_t inner, int64_t size, T alpha, T beta, T bias, const T* x, T* y, ThreadPool* pool);

/// y = x / norm along the middle of [outer, length, inner], the 1- or 2-norm; 0 where the norm is 0.
template <typename T>
void lp_normalize(int64_t outer, int64_t length, int64_t inner, int p, const T* x, T* y, ThreadPool* pool);

/// y = (x - mean) / (sqrt(mean(x^2) - mean^2) + 1e-9) over the reduced axes of `plan`, as ONNX's MeanVarianceNormalization.
template <typename T>
void mean_variance_normalize(const ReducePlan& plan, const T* x, T* y, ThreadPool* pool);

}  // namespace treadle::kernels
