// Softmax and its relatives along the middle of [outer, length, inner]. y may be x. T is float or double.
#pragma once

#include <cstdint>

#include "core/thread_pool.h"

namespace treadle::kernels {

constexpr int64_t kMaxSoftmaxColumns = 512;  ///< that are done together where inner > 1

/// y = exp(x - max) / sum exp(x - max). A row of -infinity gives NaN, as the formula does.
template <typename T>
void softmax(int64_t outer, int64_t length, int64_t inner, const T* x, T* y, ThreadPool* pool);

/// y = x - max - log sum exp(x - max)
template <typename T>
void log_softmax(int64_t outer, int64_t length, int64_t inner, const T* x, T* y, ThreadPool* pool);

/// y = 1 at the first largest element, NaN being the largest, 0 elsewhere. y must not be x.
template <typename T>
void hardmax(int64_t outer, int64_t length, int64_t inner, const T* x, T* y, ThreadPool* pool);

}  // namespace treadle::kernels
