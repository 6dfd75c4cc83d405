// Sums over all pairs of rows and vectors, for few columns: support vectors, neighbours. T is float or double.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Vectors side by side: column by column, so that a register holds one column of several. A view: whoever packs them keeps the memory.
template <typename T>
struct SideBySide {
  int64_t count = 0, columns = 0;
  int64_t stride = 0;         ///< count, rounded up to what is computed at once
  const T* packed = nullptr;  ///< [columns, stride], zeros from `count` on

  SideBySide() = default;
  SideBySide(int64_t count, int64_t columns);
  int64_t packed_elements() const { return columns * stride; }
  /// @param rows  [count, columns]
  /// @param to    room for packed_elements()
  void pack(const T* rows, T* to);
};

/// y[rows, stride] = the products of x[rows, columns] and the vectors.
template <typename T>
void products(const SideBySide<T>& vectors, const T* x, int64_t rows, T* y);

/// y[rows, stride] = the squared distances of x[rows, columns] and the vectors: sums of squares as they stand, since |a|^2 + |b|^2 - 2 a.b
/// would cancel.
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
