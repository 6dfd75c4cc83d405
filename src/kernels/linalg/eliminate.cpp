#include "kernels/linalg/eliminate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linalg/eliminate.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// Computes y -= times * x for elements from `first` to m, and for a few elements before `first`: it always uses the same aligned vectors,
/// as a load that overlaps two preceding stores is slow.
HWY_INLINE void subtract_scaled(double times, const double* HWY_RESTRICT x, double* HWY_RESTRICT y, int64_t first, int64_t m) {
  const hn::ScalableTag<double> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, times);
  int64_t j = first / lanes * lanes;
  for (; j + lanes <= m; j += lanes) hn::StoreU(hn::NegMulAdd(factor, hn::LoadU(d, x + j), hn::LoadU(d, y + j)), d, y + j);
  for (; j < m; ++j) y[j] -= times * x[j];
}

/// Finds, among rows k and following, the one with the largest element in column k, and swaps it with row k. Returns its previous index.
int64_t bring_pivot(double* a, int64_t m, int64_t k) {
  int64_t pivot = k;
  double largest = std::fabs(a[k * m + k]);
  for (int64_t i = k + 1; i < m; ++i)
    if (const double size = std::fabs(a[i * m + k]); size > largest) largest = size, pivot = i;
  if (pivot != k) std::swap_ranges(a + k * m, a + (k + 1) * m, a + pivot * m);
  return pivot;
}

}  // namespace

double determinant_of(double* a, int64_t m) {
  double result = 1;
  for (int64_t k = 0; k < m; ++k) {
    if (bring_pivot(a, m, k) != k) result = -result;
    const double* row = a + k * m;
    if (row[k] == 0) return 0;
    result *= row[k];
    for (int64_t i = k + 1; i < m; ++i) subtract_scaled(a[i * m + k] / row[k], row, a + i * m, k + 1, m);
  }
  return result;
}

// Column k of the inverse is stored in column k of the matrix, which is no longer needed.
void invert_in_place(double* a, int64_t m, int64_t* pivots) {
  for (int64_t k = 0; k < m; ++k) {
    pivots[k] = bring_pivot(a, m, k);
    double* row = a + k * m;
    const double factor = 1 / row[k];
    row[k] = 1;
    for (int64_t j = 0; j < m; ++j) row[j] *= factor;
    for (int64_t i = 0; i < m; ++i) {
      double* other = a + i * m;
      const double times = other[k];
      if (i == k || times == 0) continue;
      subtract_scaled(times, row, other, 0, m);
      other[k] = -times * row[k];  // computed separately: storing 0 first would delay the next vector load
    }
  }
  for (int64_t k = m; k-- > 0;)  // for each swap of rows, swaps the same columns of the inverse
    if (pivots[k] != k)
      for (int64_t i = 0; i < m; ++i) std::swap(a[i * m + k], a[i * m + pivots[k]]);
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(determinant_of);
HWY_EXPORT(invert_in_place);

double determinant(double* a, int64_t m) { return HWY_DYNAMIC_DISPATCH(determinant_of)(a, m); }

void invert(double* a, int64_t m, int64_t* pivots) { HWY_DYNAMIC_DISPATCH(invert_in_place)(a, m, pivots); }

}  // namespace treadle::kernels
#endif
