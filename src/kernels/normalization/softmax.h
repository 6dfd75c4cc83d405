// Softmax and related functions along the middle axis of [outer, length, inner]. y may be x. T is float or double.
#pragma once

#include <cstdint>

#include "core/threads/thread_pool.h"

namespace treadle::kernels {

constexpr int64_t kMaxSoftmaxColumns = 512;  ///< maximum number of columns that are processed together if inner > 1

/// Computes y = exp(x - max) / sum exp(x - max). A row of -infinity becomes NaN.
template <typename T>
void softmax(int64_t outer, int64_t length, int64_t inner, const T* x, T* y, ThreadPool* pool);

/// Computes y = x - max - log sum exp(x - max).
template <typename T>
void log_softmax(int64_t outer, int64_t length, int64_t inner, const T* x, T* y, ThreadPool* pool);

/// Sets y to 1 at the first maximum and to 0 elsewhere; NaN counts as the largest number. y must not be x.
template <typename T>
void hardmax(int64_t outer, int64_t length, int64_t inner, const T* x, T* y, ThreadPool* pool);

}  // namespace treadle::kernels
