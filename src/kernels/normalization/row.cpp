#include "kernels/normalization/row.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/normalization/row.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Returns the sum of x - shift, or of its square. Sums short blocks in four vectors of accumulators, and adds the blocks in double.
template <bool kSquare, typename T>
double shifted_sum(const T* x, int64_t n, T shift) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t block = 128 * lanes;  // 32 terms per accumulator; more would make the rounding error of a large mean too large
  const V shifts = hn::Set(d, shift);
  auto add = [&](V sum, V v) {
    v = hn::Sub(v, shifts);
    return kSquare ? hn::MulAdd(v, v, sum) : hn::Add(sum, v);
  };
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t end = n - begin < block ? n : begin + block;
    V a = hn::Zero(d), b = a, c = a, e = a;
    int64_t i = begin;
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      a = add(a, hn::LoadU(d, x + i));
      b = add(b, hn::LoadU(d, x + i + lanes));
      c = add(c, hn::LoadU(d, x + i + 2 * lanes));
      e = add(e, hn::LoadU(d, x + i + 3 * lanes));
    }
    for (; i + lanes <= end; i += lanes) a = add(a, hn::LoadU(d, x + i));
    if (i < end) {
      const FirstLanes some(d, end - i);
      b = hn::IfThenElse(some.mask, add(b, load_first(d, some, x + i)), b);
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e)))));
  }
  return total;
}

// Clamps the variance to 0, since rounding may make it negative if the differences from the mean are tiny. Keeps NaN.
double variance_of(double squares, double rest) {
  const double variance = squares - rest * rest;
  return variance < 0 ? 0 : variance;
}

template <typename T>
RowStatistics statistics(const T* x, int64_t n) {
  const double count = static_cast<double>(n);
  const double mean = shifted_sum<false>(x, n, T{0}) / count;
  // The mean is rounded to T. `rest` is its rounding error, for which variance_of() corrects the result.
  const T shift = static_cast<T>(mean);
  const double rest = mean - static_cast<double>(shift);
  return {mean, variance_of(shifted_sum<true>(x, n, shift) / count, rest)};
}

// Computes y = fn(x, at), one vector at a time. at(p) loads the vector with the same indices from another array p.
template <typename T, class Fn>
HWY_INLINE void map_row(const T* x, int64_t n, T* y, Fn&& fn) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(fn(hn::LoadU(d, x + i), [&](const T* p) { return hn::LoadU(d, p + i); }), d, y + i);
  if (i == n) return;
  const FirstLanes left(d, n - i);
  store_first(fn(load_first(d, left, x + i), [&](const T* p) { return load_first(d, left, p + i); }), d, left, y + i);
}

template <typename T>
void normalize(const T* x, int64_t n, T mean, T factor, const T* scale, const T* bias, T* y) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const V means = hn::Set(d, mean), factors = hn::Set(d, factor);
  auto centered = [&](V v) { return hn::Mul(hn::Sub(v, means), factors); };
  if (scale != nullptr && bias != nullptr) {
    map_row(x, n, y, [&](V v, auto&& at) { return hn::MulAdd(centered(v), at(scale), at(bias)); });
  } else if (scale != nullptr) {
    map_row(x, n, y, [&](V v, auto&& at) { return hn::Mul(centered(v), at(scale)); });
  } else if (bias != nullptr) {
    map_row(x, n, y, [&](V v, auto&& at) { return hn::Add(centered(v), at(bias)); });
  } else {
    map_row(x, n, y, [&](V v, auto&&) { return centered(v); });
  }
}

constexpr int64_t kShortRow = 64;  // number of vectors up to which a row is short: 32 terms per accumulator then suffice

// Sums x - shift, or its square, over kRows rows at once. For a single row, the latency of additions would limit the speed.
template <bool kSquare, int kRows, typename T>
HWY_INLINE void shifted_sums(const T* x, int64_t n, const T (&shift)[kRows], double (&total)[kRows]) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V even[kRows], odd[kRows];
  for (int r = 0; r < kRows; ++r) even[r] = odd[r] = hn::Zero(d);
  auto add = [&](V sum, V v, int r) {
    v = hn::Sub(v, hn::Set(d, shift[r]));
    return kSquare ? hn::MulAdd(v, v, sum) : hn::Add(sum, v);
  };
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    for (int r = 0; r < kRows; ++r) {
      even[r] = add(even[r], hn::LoadU(d, x + r * n + i), r);
      odd[r] = add(odd[r], hn::LoadU(d, x + r * n + i + lanes), r);
    }
  }
  if (i + lanes <= n) {
    for (int r = 0; r < kRows; ++r) even[r] = add(even[r], hn::LoadU(d, x + r * n + i), r);
    i += lanes;
  }
  if (i < n) {
    const FirstLanes some(d, n - i);
    for (int r = 0; r < kRows; ++r) odd[r] = hn::IfThenElse(some.mask, add(odd[r], load_first(d, some, x + r * n + i), r), odd[r]);
  }
  for (int r = 0; r < kRows; ++r) total[r] = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(even[r], odd[r]))));
}

template <int kRows, typename T>
void layer_norm_short(int64_t n, const T* x, const T* scale, const T* bias, double epsilon, T* y, T* means, T* inverse_deviations) {
  const double count = static_cast<double>(n);
  const T zeros[kRows] = {};
  T mean[kRows];
  double sum[kRows], squares[kRows];
  shifted_sums<false>(x, n, zeros, sum);
  for (int r = 0; r < kRows; ++r) mean[r] = static_cast<T>(sum[r] / count);
  shifted_sums<true>(x, n, mean, squares);
  for (int r = 0; r < kRows; ++r) {
    const double rest = sum[r] / count - static_cast<double>(mean[r]);
    const T inverse = static_cast<T>(1 / std::sqrt(variance_of(squares[r] / count, rest) + epsilon));
    normalize(x + r * n, n, mean[r], inverse, scale, bias, y + r * n);
    if (means) means[r] = mean[r];
    if (inverse_deviations) inverse_deviations[r] = inverse;
  }
}

template <typename T>
void layer_norm(int64_t rows, int64_t n, const T* x, const T* scale, const T* bias, double epsilon, T* y, T* means, T* inverse_deviations) {
  constexpr int kTogether = 4;
  const bool is_short = n <= kShortRow * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  for (int64_t r = 0; r < rows;) {
    T *mean = means ? means + r : nullptr, *inverse = inverse_deviations ? inverse_deviations + r : nullptr;
    if (is_short && rows - r >= kTogether) {
      layer_norm_short<kTogether>(n, x + r * n, scale, bias, epsilon, y + r * n, mean, inverse);
      r += kTogether;
      continue;
    }
    if (is_short) {
      layer_norm_short<1>(n, x + r * n, scale, bias, epsilon, y + r * n, mean, inverse);
    } else {
      const RowStatistics s = statistics(x + r * n, n);
      const T factor = static_cast<T>(1 / std::sqrt(s.variance + epsilon));
      normalize(x + r * n, n, static_cast<T>(s.mean), factor, scale, bias, y + r * n);
      if (mean) *mean = static_cast<T>(s.mean);
      if (inverse) *inverse = factor;
    }
    ++r;
  }
}

template <typename T>
void affine(const T* x, int64_t n, T mean, T multiplier, T addend, T* y) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const V means = hn::Set(d, mean), multipliers = hn::Set(d, multiplier), addends = hn::Set(d, addend);
  map_row(x, n, y, [&](V v, auto&&) { return hn::MulAdd(hn::Sub(v, means), multipliers, addends); });
}

}  // namespace

#define TREADLE_ROW(T)                                                                                                                   \
  RowStatistics statistics_##T(const T* x, int64_t n) { return statistics(x, n); }                                                       \
  void normalize_##T(const T* x, int64_t n, T mean, T factor, const T* scale, const T* bias, T* y) {                                     \
    normalize(x, n, mean, factor, scale, bias, y);                                                                                       \
  }                                                                                                                                      \
  void layer_norm_##T(int64_t rows, int64_t n, const T* x, const T* scale, const T* bias, double epsilon, T* y, T* means, T* inverses) { \
    layer_norm(rows, n, x, scale, bias, epsilon, y, means, inverses);                                                                    \
  }                                                                                                                                      \
  void affine_##T(const T* x, int64_t n, T mean, T multiplier, T addend, T* y) { affine(x, n, mean, multiplier, addend, y); }
TREADLE_ROW(float)
TREADLE_ROW(double)
#undef TREADLE_ROW

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

#define TREADLE_ROW(T)                                                                                                                    \
  HWY_EXPORT(statistics_##T);                                                                                                             \
  HWY_EXPORT(normalize_##T);                                                                                                              \
  HWY_EXPORT(layer_norm_##T);                                                                                                             \
  HWY_EXPORT(affine_##T);                                                                                                                 \
  template <>                                                                                                                             \
  RowStatistics row_statistics(const T* x, int64_t n) {                                                                                   \
    return HWY_DYNAMIC_DISPATCH(statistics_##T)(x, n);                                                                                    \
  }                                                                                                                                       \
  template <>                                                                                                                             \
  void row_normalize(const T* x, int64_t n, T mean, T factor, const T* scale, const T* bias, T* y) {                                      \
    HWY_DYNAMIC_DISPATCH(normalize_##T)(x, n, mean, factor, scale, bias, y);                                                              \
  }                                                                                                                                       \
  template <>                                                                                                                             \
  void layer_norm_rows(int64_t rows, int64_t n, const T* x, const T* scale, const T* bias, double epsilon, T* y, T* means, T* inverses) { \
    HWY_DYNAMIC_DISPATCH(layer_norm_##T)(rows, n, x, scale, bias, epsilon, y, means, inverses);                                           \
  }                                                                                                                                       \
  template <>                                                                                                                             \
  void row_affine(const T* x, int64_t n, T mean, T multiplier, T addend, T* y) {                                                          \
    HWY_DYNAMIC_DISPATCH(affine_##T)(x, n, mean, multiplier, addend, y);                                                                  \
  }
TREADLE_ROW(float)
TREADLE_ROW(double)
#undef TREADLE_ROW

}  // namespace treadle::kernels
#endif
