#include "kernels/reduce/log_sum_exp.h"

#include "kernels/elementwise/unary_f32.h"
#include "kernels/reduce/fold.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/log_sum_exp.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/elementwise/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

// Returns the sum of exp(x - shift). Sums short blocks in two vectors of accumulators, and adds the blocks' sums in double.
double sum_of_exp(const float* x, int64_t n, float shift) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kBlock = 2048;
  const V shifts = hn::Set(d, shift);
  auto term = [&](const float* from) { return exp_of_negative(d, hn::Sub(hn::LoadU(d, from), shifts)); };
  HWY_ALIGN float rest[hn::MaxLanes(d)];
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = n - begin < kBlock ? n : begin + kBlock;
    V a = hn::Zero(d), b = a;
    int64_t i = begin;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      a = hn::Add(a, term(x + i));
      b = hn::Add(b, term(x + i + lanes));
    }
    for (; i + lanes <= end; i += lanes) a = hn::Add(a, term(x + i));
    if (i < end) {
      for (int64_t j = 0; j < lanes; ++j) rest[j] = i + j < end ? x[i + j] : shift;
      b = hn::Add(b, hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(end - i)), term(rest)));
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b))));
  }
  return total;
}

}  // namespace

void sums_of_exp(const float* x, int64_t rows, int64_t row_stride, int64_t n, const double* shifts, float* y) {
  for (int64_t i = 0; i < rows; ++i) y[i] = static_cast<float>(sum_of_exp(x + i * row_stride, n, static_cast<float>(shifts[i])));
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cmath>
#include <limits>

namespace treadle::kernels {

HWY_EXPORT(sums_of_exp);

void log_sum_exp_rows(const float* x, int64_t rows, int64_t row_stride, int64_t n, float* y) {
  double largest[kFoldColumns];
  std::fill_n(largest, rows, -std::numeric_limits<double>::infinity());
  fold_rows(Fold::max, x, rows, row_stride, n, largest);
  HWY_DYNAMIC_DISPATCH(sums_of_exp)(x, rows, row_stride, n, largest, y);
  log_f32(y, y, rows);
  // If the maximum is infinite, its difference from itself is NaN; in this case, the result is the maximum.
  for (int64_t i = 0; i < rows; ++i) y[i] = std::isinf(largest[i]) ? static_cast<float>(largest[i]) : static_cast<float>(largest[i]) + y[i];
}

}  // namespace treadle::kernels
#endif
