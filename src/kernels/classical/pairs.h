// Dot products and distances of all pairs of rows and vectors with few columns, for SVMs and nearest neighbours. T is float or double.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Vectors stored column by column, so that a register holds one column of several vectors. This view does not own the memory.
template <typename T>
struct SideBySide {
  int64_t count = 0, columns = 0;
  int64_t stride = 0;         ///< `count`, rounded up to the number of vectors that are computed at a time
  const T* packed = nullptr;  ///< [columns, stride]; zero for vectors from `count` on

  SideBySide() = default;
  SideBySide(int64_t count, int64_t columns);
  int64_t packed_elements() const { return columns * stride; }
  /// @param rows  [count, columns]
  /// @param to    memory for packed_elements() elements
  void pack(const T* rows, T* to);
};

/// Computes y[rows, stride], the dot products of x[rows, columns] and the vectors.
template <typename T>
void products(const SideBySide<T>& vectors, const T* x, int64_t rows, T* y);

/// Computes y[rows, stride], the squared distances of x[rows, columns] and the vectors. It sums squared differences, because the formula
/// |a|^2 + |b|^2 - 2 a.b would suffer from cancellation.
template <typename T>
void squared_distances(const SideBySide<T>& vectors, const T* x, int64_t rows, T* y);

#define TREADLE_PAIRS(T)                                                         \
  extern template struct SideBySide<T>;                                          \
  extern template void products<T>(const SideBySide<T>&, const T*, int64_t, T*); \
  extern template void squared_distances<T>(const SideBySide<T>&, const T*, int64_t, T*);
TREADLE_PAIRS(float)
TREADLE_PAIRS(double)
#undef TREADLE_PAIRS

}  // namespace treadle::kernels
