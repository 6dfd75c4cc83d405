// Gradients of row-wise operators: layer and RMS normalization, and softmax along contiguous rows. T is float or double.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads/thread_pool.h"

namespace treadle::kernels {

/// A normalization of rows: y = xhat * scale + bias, where xhat = (x - mean) / std, or x / rms.
template <typename T>
struct NormGradient {
  int64_t rows = 0, length = 0;
  bool centered = true;  ///< true: xhat = (x - mean) / std; false: xhat = x / rms
  double epsilon = 1e-5;
  const T *dy = nullptr, *x = nullptr, *scale = nullptr;
  T* dx = nullptr;                        ///< may be dy or x
  T *dscale = nullptr, *dbias = nullptr;  ///< `length` elements each, or null
};

size_t norm_gradient_scratch_bytes(int64_t rows, int64_t length, size_t element_bytes);

/// Computes the gradients. Rows are summed in blocks that depend only on the number of rows, so results do not depend on threads.
/// @param scratch  norm_gradient_scratch_bytes(...), aligned to 64 bytes
template <typename T>
void norm_gradient(const NormGradient<T>& job, void* scratch, ThreadPool* pool);

/// Computes dx = y (dy - sum(y dy)) for each row. dx may be y or dy.
template <typename T>
void softmax_gradient(int64_t rows, int64_t length, const T* y, const T* dy, T* dx, ThreadPool* pool);

}  // namespace treadle::kernels
