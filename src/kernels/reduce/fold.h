// The interface between the reduction driver and its inner loops.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/values/float_types.h"

namespace treadle::kernels {

enum class Fold : uint8_t { sum, sum_abs, sum_square, prod, max, min };

/// FoldChain is the type of an accumulator; FoldTotal is the type in which accumulators are combined. Integers wrap around as in NumPy:
/// sums and products are computed as unsigned numbers, which gives the same bits; max and min need the sign.
template <typename T>
using FoldChain = std::conditional_t<std::is_integral_v<T>, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                                     std::conditional_t<std::is_same_v<T, double>, double, float>>;
template <typename T>
using FoldTotal = std::conditional_t<std::is_integral_v<T>, FoldChain<T>, double>;

/// Maximum number of outputs for one call of fold_columns() or fold_rows().
inline constexpr int64_t kFoldColumns = 256;

/// Returns `total` combined with n elements.
template <typename T>
FoldTotal<T> fold_run(Fold fold, const T* x, int64_t n, int64_t stride, FoldTotal<T> total);
/// For each i in [0, count): combines totals[i] with x[i * row_stride + j] for every j in [0, n). @pre count <= kFoldColumns
template <typename T>
void fold_rows(Fold fold, const T* x, int64_t count, int64_t row_stride, int64_t n, FoldTotal<T>* totals);
/// For each j in [0, n): combines columns[j] with x[r * row_stride + j] for every row r. @pre n <= kFoldColumns
template <typename T>
void fold_columns(Fold fold, const T* x, int64_t rows, int64_t row_stride, int64_t n, FoldTotal<T>* columns);

}  // namespace treadle::kernels

/// Expands DEFINE(T) for every element type that can be reduced.
#define TREADLE_FOR_NUMBERS(DEFINE) \
  DEFINE(float)                     \
  DEFINE(double)                    \
  DEFINE(int8_t)                    \
  DEFINE(uint8_t)                   \
  DEFINE(int16_t)                   \
  DEFINE(uint16_t)                  \
  DEFINE(int32_t)                   \
  DEFINE(uint32_t)                  \
  DEFINE(int64_t)                   \
  DEFINE(uint64_t)                  \
  DEFINE(Float16)                   \
  DEFINE(BFloat16)
