#include "kernels/elementwise/quantize.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/quantize.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/elementwise/saturation-inl.h"
#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Comparisons with NaN are false, so the result for NaN is the bound.
HWY_INLINE V smaller(V x, V bound) { return hn::IfThenElse(hn::Lt(x, bound), x, bound); }
HWY_INLINE V larger(V x, V bound) { return hn::IfThenElse(hn::Gt(x, bound), x, bound); }

// Floats near 1.5 * 2^23 have a spacing of 1, so adding this number rounds to an integer.
constexpr float kRounds = 12582912.0F;

template <typename Code>
HWY_INLINE hn::Vec<hn::Rebind<Code, D>> codes(V x, V scale, V zero) {
  using Limits = std::numeric_limits<Code>;
  const D d;
  const V low = hn::Sub(hn::Set(d, float{Limits::min()}), zero), high = hn::Sub(hn::Set(d, float{Limits::max()}), zero);
  const V rounds = hn::Set(d, kRounds);
  // The clamp may precede the rounding, as the bounds are integers.
  const V inside = smaller(larger(hn::Div(x, scale), low), high);
  // The rounded integer is in the lowest bits of the sum.
  const hn::RebindToSigned<D> words;
  const auto code = hn::Sub(hn::BitCast(words, hn::Add(inside, rounds)), hn::BitCast(words, hn::Sub(rounds, zero)));
  return hn::DemoteTo(hn::Rebind<Code, D>(), code);
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

template <typename Code>
void quantize(const float* x, int64_t n, float scale, float zero, Code* y) {
  const D d;
  const hn::Rebind<Code, D> bytes;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V s = hn::Set(d, scale), z = hn::Set(d, zero);
  int64_t i = 0;
#if TREADLE_QUANTIZES_BY_SATURATION
  const auto zeros = hn::Set(hn::Repartition<int16_t, D>(), static_cast<int16_t>(zero));
  const V inverse = hn::Set(d, inverse_of(scale));
  for (; i + 4 * lanes <= n; i += 4 * lanes)
    hn::StoreU(divided_codes<Code>(hn::LoadU(d, x + i), hn::LoadU(d, x + i + lanes), hn::LoadU(d, x + i + 2 * lanes),
                                   hn::LoadU(d, x + i + 3 * lanes), s, inverse, zeros),
               hn::Repartition<Code, D>(), y + i);
#endif
  for (; i + lanes <= n; i += lanes) hn::StoreU(codes<Code>(hn::LoadU(d, x + i), s, z), bytes, y + i);
  if (i == n) return;
  HWY_ALIGN Code last[hn::MaxLanes(d)];
  hn::Store(codes<Code>(load_first(d, FirstLanes(d, n - i), x + i), s, z), bytes, last);
  for (int64_t k = 0; i + k < n; ++k) y[i + k] = last[k];
}

template <typename Code>
void dequantize(const Code* x, int64_t n, float scale, float zero, float* y) {
  const D d;
  const hn::Rebind<Code, D> bytes;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V s = hn::Set(d, scale), z = hn::Set(d, zero);
  auto value = [&](int64_t i) HWY_ATTR {
    const V code = hn::ConvertTo(d, hn::PromoteTo(hn::Rebind<int32_t, D>(), hn::LoadU(bytes, x + i)));
    return hn::Mul(hn::Sub(code, z), s);
  };
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const V low = value(i), high = value(i + lanes);
    hn::StoreU(low, d, y + i);
    hn::StoreU(high, d, y + i + lanes);
  }
  for (; i + lanes <= n; i += lanes) hn::StoreU(value(i), d, y + i);
  for (; i < n; ++i) y[i] = (static_cast<float>(x[i]) - zero) * scale;
}

#define TREADLE_CODES(T)                                                                                          \
  void quantize_##T(const float* x, int64_t n, float scale, float zero, T* y) { quantize(x, n, scale, zero, y); } \
  void dequantize_##T(const T* x, int64_t n, float scale, float zero, float* y) { dequantize(x, n, scale, zero, y); }
TREADLE_CODES(uint8_t)
TREADLE_CODES(int8_t)
#undef TREADLE_CODES

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(range_of);

FloatRange range_around_zero(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(range_of)(x, n); }

#define TREADLE_CODES(T)                                                            \
  HWY_EXPORT(quantize_##T);                                                         \
  HWY_EXPORT(dequantize_##T);                                                       \
  template <>                                                                       \
  void quantize_bytes(const float* x, int64_t n, float scale, float zero, T* y) {   \
    HWY_DYNAMIC_DISPATCH(quantize_##T)(x, n, scale, zero, y);                       \
  }                                                                                 \
  template <>                                                                       \
  void dequantize_bytes(const T* x, int64_t n, float scale, float zero, float* y) { \
    HWY_DYNAMIC_DISPATCH(dequantize_##T)(x, n, scale, zero, y);                     \
  }
TREADLE_CODES(uint8_t)
TREADLE_CODES(int8_t)
#undef TREADLE_CODES

}  // namespace treadle::kernels
#endif
