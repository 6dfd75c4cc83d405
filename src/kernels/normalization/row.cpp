#include "kernels/normalization/row.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/normalization/row.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

// sum of (x - shift), or of its square; chains over short blocks, whose totals are joined in double.
template <bool kSquare, typename T>
double shifted_sum(const T* x, int64_t n, T shift) {
  constexpr int64_t kChains = 32, kBlock = 2048;
  double total = 0;
  int64_t i = 0;
  while (n - i >= kChains) {
    const int64_t end = i + (n - i < kBlock ? n - i : kBlock) / kChains * kChains;
    T chain[kChains] = {};
    for (; i < end; i += kChains) {
      for (int64_t j = 0; j < kChains; ++j) {
        const T v = x[i + j] - shift;
        chain[j] += kSquare ? v * v : v;
      }
    }
    for (int64_t half = kChains / 2; half > 0; half /= 2) {
      for (int64_t j = 0; j < half; ++j) chain[j] += chain[j + half];
    }
    total += static_cast<double>(chain[0]);
  }
  for (; i < n; ++i) {
    const T v = x[i] - shift;
    total += static_cast<double>(kSquare ? v * v : v);
  }
  return total;
}

template <typename T>
RowStatistics statistics(const T* x, int64_t n) {
  const double count = static_cast<double>(n);
  const double mean = shifted_sum<false>(x, n, T{0}) / count;
  // The mean was rounded to T; what is left of it is put right in both results.
  const T shift = static_cast<T>(mean);
  const double rest = mean - static_cast<double>(shift);
  return {mean, shifted_sum<true>(x, n, shift) / count - rest * rest};
}

template <typename T>
void normalize(const T* x, int64_t n, T mean, T factor, const T* scale, const T* bias, T* y) {
  if (scale != nullptr && bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor * scale[i] + bias[i];
  } else if (scale != nullptr) {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor * scale[i];
  } else if (bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor + bias[i];
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor;
  }
}

template <typename T>
void affine(const T* x, int64_t n, T multiplier, T addend, T* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * multiplier + addend;
}

}  // namespace

#define TREADLE_ROW(T)                                                                               \
  RowStatistics statistics_##T(const T* x, int64_t n) { return statistics(x, n); }                   \
  void normalize_##T(const T* x, int64_t n, T mean, T factor, const T* scale, const T* bias, T* y) { \
    normalize(x, n, mean, factor, scale, bias, y);                                                   \
  }                                                                                                  \
  void affine_##T(const T* x, int64_t n, T multiplier, T addend, T* y) { affine(x, n, multiplier, addend, y); }
TREADLE_ROW(float)
TREADLE_ROW(double)
#undef TREADLE_ROW

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

#define TREADLE_ROW(T)                                                                               \
  HWY_EXPORT(statistics_##T);                                                                        \
  HWY_EXPORT(normalize_##T);                                                                         \
  HWY_EXPORT(affine_##T);                                                                            \
  template <>                                                                                        \
  RowStatistics row_statistics(const T* x, int64_t n) {                                              \
    return HWY_DYNAMIC_DISPATCH(statistics_##T)(x, n);                                               \
  }                                                                                                  \
  template <>                                                                                        \
  void row_normalize(const T* x, int64_t n, T mean, T factor, const T* scale, const T* bias, T* y) { \
    HWY_DYNAMIC_DISPATCH(normalize_##T)(x, n, mean, factor, scale, bias, y);                         \
  }                                                                                                  \
  template <>                                                                                        \
  void row_affine(const T* x, int64_t n, T multiplier, T addend, T* y) {                             \
    HWY_DYNAMIC_DISPATCH(affine_##T)(x, n, multiplier, addend, y);                                   \
  }
TREADLE_ROW(float)
TREADLE_ROW(double)
#undef TREADLE_ROW

}  // namespace treadle::kernels
#endif
