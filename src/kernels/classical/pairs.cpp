#include "kernels/classical/pairs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/classical/pairs.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Maximum number of columns that are summed in one accumulator. Rounding errors of longer chains would dominate the error of a long row.
constexpr int64_t kLongestSum = 256;

// Computes sums[r, v] for kRows rows and the vectors v that fill two registers: dot products, or squared distances.
template <int kRows, bool kDistance, typename T>
HWY_INLINE void tile(const T* x, int64_t columns, const T* vectors, int64_t stride, T* sums) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  using V = hn::Vec<hn::ScalableTag<T>>;
  for (int64_t begin = 0; begin < columns; begin += kLongestSum) {
    const int64_t end = std::min(columns, begin + kLongestSum);
    V low[kRows], high[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) low[r] = high[r] = hn::Zero(d);
    for (int64_t c = begin; c < end; ++c) {
      const V first = hn::LoadU(d, vectors + c * stride), second = hn::LoadU(d, vectors + c * stride + lanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const V own = hn::Set(d, x[r * columns + c]);
        if constexpr (kDistance) {
          const V a = hn::Sub(own, first), b = hn::Sub(own, second);
          low[r] = hn::MulAdd(a, a, low[r]), high[r] = hn::MulAdd(b, b, high[r]);
        } else {
          low[r] = hn::MulAdd(own, first, low[r]), high[r] = hn::MulAdd(own, second, high[r]);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      T* to = sums + r * stride;
      if (begin > 0) low[r] = hn::Add(low[r], hn::LoadU(d, to)), high[r] = hn::Add(high[r], hn::LoadU(d, to + lanes));
      hn::StoreU(low[r], d, to), hn::StoreU(high[r], d, to + lanes);
    }
  }
}

template <bool kDistance, typename T>
void all_tiles(const SideBySide<T>& vectors, const T* x, int64_t rows, T* sums) {
  const int64_t columns = vectors.columns, stride = vectors.stride, step = 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  if (columns == 0) return static_cast<void>(std::fill_n(sums, rows * stride, T{0}));
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    for (int64_t v = 0; v < stride; v += step)
      tile<4, kDistance>(x + r * columns, columns, vectors.packed + v, stride, sums + r * stride + v);
  for (; r < rows; ++r)
    for (int64_t v = 0; v < stride; v += step)
      tile<1, kDistance>(x + r * columns, columns, vectors.packed + v, stride, sums + r * stride + v);
}

}  // namespace

void products_f32(const SideBySide<float>& vectors, const float* x, int64_t rows, float* y) { all_tiles<false>(vectors, x, rows, y); }
void products_f64(const SideBySide<double>& vectors, const double* x, int64_t rows, double* y) { all_tiles<false>(vectors, x, rows, y); }
void distances_f32(const SideBySide<float>& vectors, const float* x, int64_t rows, float* y) { all_tiles<true>(vectors, x, rows, y); }
void distances_f64(const SideBySide<double>& vectors, const double* x, int64_t rows, double* y) { all_tiles<true>(vectors, x, rows, y); }
int64_t step_f32() { return 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>())); }
int64_t step_f64() { return 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<double>())); }

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(products_f32);
HWY_EXPORT(products_f64);
HWY_EXPORT(distances_f32);
HWY_EXPORT(distances_f64);
HWY_EXPORT(step_f32);
HWY_EXPORT(step_f64);

template <typename T>
SideBySide<T>::SideBySide(int64_t count, int64_t columns) : count(count), columns(columns) {
  const int64_t step = std::is_same_v<T, float> ? HWY_DYNAMIC_DISPATCH(step_f32)() : HWY_DYNAMIC_DISPATCH(step_f64)();
  stride = (count + step - 1) / step * step;
}

template <typename T>
void SideBySide<T>::pack(const T* rows, T* to) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t v = 0; v < count; ++v) to[c * stride + v] = rows[v * columns + c];
    std::fill(to + c * stride + count, to + (c + 1) * stride, T{0});
  }
  packed = to;
}

template <typename T>
void products(const SideBySide<T>& vectors, const T* x, int64_t rows, T* y) {
  if constexpr (std::is_same_v<T, float>)
    HWY_DYNAMIC_DISPATCH(products_f32)(vectors, x, rows, y);
  else
    HWY_DYNAMIC_DISPATCH(products_f64)(vectors, x, rows, y);
}

template <typename T>
void squared_distances(const SideBySide<T>& vectors, const T* x, int64_t rows, T* y) {
  if constexpr (std::is_same_v<T, float>)
    HWY_DYNAMIC_DISPATCH(distances_f32)(vectors, x, rows, y);
  else
    HWY_DYNAMIC_DISPATCH(distances_f64)(vectors, x, rows, y);
}

#define TREADLE_PAIRS(T)                                                  \
  template struct SideBySide<T>;                                          \
  template void products<T>(const SideBySide<T>&, const T*, int64_t, T*); \
  template void squared_distances<T>(const SideBySide<T>&, const T*, int64_t, T*);
TREADLE_PAIRS(float)
TREADLE_PAIRS(double)
#undef TREADLE_PAIRS

}  // namespace treadle::kernels
#endif
