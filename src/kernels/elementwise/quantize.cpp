#include "kernels/elementwise/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/quantize.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Comparisons are false of NaN: the bound stays.
HWY_INLINE V smaller(V x, V bound) { return hn::IfThenElse(hn::Lt(x, bound), x, bound); }
HWY_INLINE V larger(V x, V bound) { return hn::IfThenElse(hn::Gt(x, bound), x, bound); }

// At 1.5 * 2^23 the spacing of floats is 1.
constexpr float kRounds = 12582912.0F;

HWY_INLINE hn::Vec<hn::Rebind<uint8_t, D>> codes(V x, V scale, V zero) {
  const D d;
  const V low = hn::Sub(hn::Zero(d), zero), high = hn::Sub(hn::Set(d, 255.0F), zero), rounds = hn::Set(d, kRounds);
  // Clamped before it is rounded, which comes to the same as the bounds are integers.
  const V inside = smaller(larger(hn::Div(x, scale), low), high);
  const V code = hn::Add(hn::Sub(hn::Add(inside, rounds), rounds), zero);
  return hn::DemoteTo(hn::Rebind<uint8_t, D>(), hn::ConvertTo(hn::Rebind<int32_t, D>(), code));
}

}  // namespace

FloatRange range_of(const float* x, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int kChains = 4;
  V low[kChains], high[kChains];
  for (int k = 0; k < kChains; ++k) low[k] = high[k] = hn::Zero(d);
  int64_t i = 0;
  for (; i + kChains * lanes <= n; i += kChains * lanes) {
#pragma GCC unroll 4
    for (int k = 0; k < kChains; ++k) {
      const V v = hn::LoadU(d, x + i + k * lanes);
      low[k] = smaller(v, low[k]), high[k] = larger(v, high[k]);
    }
  }
  for (; i < n; i += lanes) {
    const V v = n - i >= lanes ? hn::LoadU(d, x + i) : load_first(d, FirstLanes(d, n - i), x + i);
    low[0] = smaller(v, low[0]), high[0] = larger(v, high[0]);
  }
  for (int k = 1; k < kChains; ++k) low[0] = smaller(low[k], low[0]), high[0] = larger(high[k], high[0]);
  return {hn::GetLane(hn::MinOfLanes(d, low[0])), hn::GetLane(hn::MaxOfLanes(d, high[0]))};
}

void quantize(const float* x, int64_t n, float scale, float zero, uint8_t* y) {
  const D d;
  const hn::Rebind<uint8_t, D> bytes;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V s = hn::Set(d, scale), z = hn::Set(d, zero);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(codes(hn::LoadU(d, x + i), s, z), bytes, y + i);
  if (i == n) return;
  HWY_ALIGN uint8_t last[hn::MaxLanes(d)];
  hn::Store(codes(load_first(d, FirstLanes(d, n - i), x + i), s, z), bytes, last);
  for (int64_t k = 0; i + k < n; ++k) y[i + k] = last[k];
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(range_of);
HWY_EXPORT(quantize);

FloatRange range_around_zero(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(range_of)(x, n); }
void quantize_bytes(const float* x, int64_t n, float scale, float zero, uint8_t* y) {
  HWY_DYNAMIC_DISPATCH(quantize)(x, n, scale, zero, y);
}

}  // namespace treadle::kernels
#endif
