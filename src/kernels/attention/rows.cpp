#include "kernels/attention/rows.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/rows.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/elementwise/math-inl.h"
#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Calls fn(i, number of elements left) for each vector of n elements; the last vector may be partial.
template <class Fn>
HWY_INLINE void each_vector(int64_t n, Fn&& fn) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) fn(i, lanes);
  if (i < n) fn(i, n - i);
}
HWY_INLINE V load(D d, const float* p, int64_t left, float other) {
  if (left >= static_cast<int64_t>(hn::Lanes(d))) return hn::LoadU(d, p);
  const FirstLanes first(d, left);
  return hn::IfThenElse(first.mask, load_first(d, first, p), hn::Set(d, other));
}
HWY_INLINE void store(D d, V v, float* p, int64_t left) {
  if (left >= static_cast<int64_t>(hn::Lanes(d))) return hn::StoreU(v, d, p);
  store_first(v, d, FirstLanes(d, left), p);
}

}  // namespace

void add_bias(float* row, const float* bias, int64_t n) {
  const D d;
  const V lowest = hn::Set(d, kLowest);
  each_vector(n, [&](int64_t i, int64_t left) {
    const V b = load(d, bias + i, left, 0.0f), x = load(d, row + i, left, 0.0f);
    store(d, hn::IfThenElse(hn::Eq(b, lowest), lowest, hn::Add(x, b)), row + i, left);
  });
}

void mask_by_bools(float* row, const uint8_t* mask, uint8_t keeps, float masked, int64_t n) {
  const D d;
  const hn::Rebind<uint8_t, D> bytes;
  const hn::RebindToUnsigned<D> words;
  const V other = hn::Set(d, masked);
  const auto kept = hn::Set(words, keeps);
  auto some = [&](V x, auto flags) { return hn::IfThenElse(hn::RebindMask(d, hn::Eq(hn::PromoteTo(words, flags), kept)), x, other); };
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(some(hn::LoadU(d, row + i), hn::LoadU(bytes, mask + i)), d, row + i);
  for (; i < n; ++i) row[i] = mask[i] == keeps ? row[i] : masked;
}

float softmax(float* row, int64_t n, EmptyRows empty) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V top = hn::Set(d, kLowest);
  // Uses four accumulators to hide the latency. If the maximum misses a NaN, exp still passes it to the sum.
  int64_t i = 0;
  if (n >= 4 * lanes) {
    V tops[4] = {top, top, top, top};
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) tops[v] = at_least(tops[v], hn::LoadU(d, row + i + v * lanes));
    }
    top = at_least(at_least(tops[0], tops[1]), at_least(tops[2], tops[3]));
  }
  each_vector(n - i, [&](int64_t j, int64_t left) { top = at_least(top, load(d, row + i + j, left, kLowest)); });
  const V largest = hn::MaxOfLanes(d, top);
  V sum = hn::Zero(d);
  each_vector(n, [&](int64_t j, int64_t left) {
    V e = exp_of_negative(d, hn::Sub(load(d, row + j, left, kLowest), largest));
    if (left < lanes) e = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(left)), e);
    sum = hn::Add(sum, e);
    store(d, e, row + j, left);
  });
  const float total = hn::GetLane(hn::SumOfLanes(d, sum));
  const bool is_nan = !(total == total);
  if (is_nan && (empty == EmptyRows::zero_for_nan || (empty == EmptyRows::zero && hn::GetLane(largest) == kLowest))) {
    for (int64_t j = 0; j < n; ++j) row[j] = 0;
    return 1;
  }
  return 1 / total;
}

void scale(float* row, float factor, int64_t n) {
  const D d;
  const V by = hn::Set(d, factor);
  each_vector(n, [&](int64_t i, int64_t left) { store(d, hn::Mul(load(d, row + i, left, 0.0f), by), row + i, left); });
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(add_bias);
HWY_EXPORT(mask_by_bools);
HWY_EXPORT(softmax);
HWY_EXPORT(scale);

void add_bias_row(float* row, const float* bias, int64_t n) { HWY_DYNAMIC_DISPATCH(add_bias)(row, bias, n); }
void mask_row_f32(float* row, const bool* mask, bool keeps, float masked, int64_t n) {
  HWY_DYNAMIC_DISPATCH(mask_by_bools)(row, reinterpret_cast<const uint8_t*>(mask), keeps ? 1 : 0, masked, n);
}
float softmax_scores(float* row, int64_t n, EmptyRows empty) {
  if (n == 0) return 1;  // a sum over no keys is 0, so the factor does not matter
  return HWY_DYNAMIC_DISPATCH(softmax)(row, n, empty);
}
void scale_row_f32(float* row, float factor, int64_t n) { HWY_DYNAMIC_DISPATCH(scale)(row, factor, n); }

}  // namespace treadle::kernels
#endif
