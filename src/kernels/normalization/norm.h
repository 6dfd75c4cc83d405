// Row-wise and channel-wise normalizations. y may be x. T is float or double; statistics of float rows are summed in float block by block,
// and the blocks are added in double.
#pragma once

#include <cstdint>

#include "core/threads/thread_pool.h"
#include "kernels/reduce/reduce.h"

namespace treadle::kernels {

/// Computes y = (x - mean) / sqrt(variance + epsilon) * scale + bias for each of `rows` rows of `length`.
/// @param scale, bias  `length` values, or null: 1 and 0
/// @param mean, inverse_deviation  receive the statistics of the `rows` rows; may be null
template <typename T>
void layer_norm(int64_t rows, int64_t length, const T* x, const T* scale, const T* bias, T epsilon, T* y, T* mean, T* inverse_deviation,
                ThreadPool* pool);

/// Computes y = x / sqrt(mean(x^2) + epsilon) * scale for each row.
template <typename T>
void rms_norm(int64_t rows, int64_t length, const T* x, const T* scale, T epsilon, T* y, ThreadPool* pool);

/// Computes y[n, c, i] = (x[n, c, i] - mean(c)) * multiplier(c) + bias(c), with multiplier = scale / sqrt(variance + epsilon).
template <typename T>
void batch_norm(int64_t N, int64_t C, int64_t inner, const T* x, const T* scale, const T* bias, const T* mean, const T* variance, T epsilon,
                T* y, ThreadPool* pool);

/// Normalizes each of the N * groups rows, which have C / groups * inner elements. Then applies scale and bias, which have one value for
/// each of the C channels. Instance normalization has C groups.
template <typename T>
void group_norm(int64_t N, int64_t C, int64_t groups, int64_t inner, const T* x, const T* scale, const T* bias, T epsilon, T* y,
                ThreadPool* pool);

/// Computes ONNX's LRN: y = x / (bias + alpha / size * sum of x^2 over the `size` surrounding channels)^beta. y must not be x.
template <typename T>
void lrn(int64_t N, int64_t C, int64_t inner, int64_t size, T alpha, T beta, T bias, const T* x, T* y, ThreadPool* pool);

/// Computes y = x / norm along the middle axis of [outer, length, inner]; 0 if the norm is 0. @param p  1 or 2: L1 or L2 norm
template <typename T>
void lp_normalize(int64_t outer, int64_t length, int64_t inner, int p, const T* x, T* y, ThreadPool* pool);

/// Computes ONNX's MeanVarianceNormalization: y = (x - mean) / (sqrt(mean(x^2) - mean^2) + 1e-9) over the reduced axes of `plan`.
template <typename T>
void mean_variance_normalize(const ReducePlan& plan, const T* x, T* y, ThreadPool* pool);

}  // namespace treadle::kernels
