#include "kernels/reduce/find_beyond.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/find_beyond.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <type_traits>

#ifndef TREADLE_BEYOND_TYPES  // needed because this file is included once for each instruction set
#define TREADLE_BEYOND_TYPES(each) \
  each(float) each(double) each(int8_t) each(int16_t) each(int32_t) each(int64_t) each(uint8_t) each(uint16_t) each(uint32_t) each(uint64_t)
#endif

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <bool kAbove, typename T>
int64_t first_beyond(const T* x, int64_t n, T bound) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto bounds = hn::Set(d, bound);
  auto beyond = [&](auto v) {
    if constexpr (std::is_floating_point_v<T>)  // Le() and Ge() are false for NaN, so negated comparisons are true
      return hn::Not(kAbove ? hn::Le(v, bounds) : hn::Ge(v, bounds));
    else
      return kAbove ? hn::Gt(v, bounds) : hn::Lt(v, bounds);
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const intptr_t at = hn::FindFirstTrue(d, beyond(hn::LoadU(d, x + i)));
    if (at >= 0) return i + at;
  }
  while (i < n && (kAbove ? x[i] <= bound : x[i] >= bound)) ++i;
  return i;
}

#define TREADLE_FIND_BEYOND(T)                                                                        \
  int64_t first_above_##T(const T* x, int64_t n, T bound) { return first_beyond<true>(x, n, bound); } \
  int64_t first_below_##T(const T* x, int64_t n, T bound) { return first_beyond<false>(x, n, bound); }
TREADLE_BEYOND_TYPES(TREADLE_FIND_BEYOND)
#undef TREADLE_FIND_BEYOND

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

#define TREADLE_FIND_BEYOND(T)                                 \
  HWY_EXPORT(first_above_##T);                                 \
  HWY_EXPORT(first_below_##T);                                 \
  template <>                                                  \
  int64_t find_above(const T* x, int64_t n, T bound) {         \
    return HWY_DYNAMIC_DISPATCH(first_above_##T)(x, n, bound); \
  }                                                            \
  template <>                                                  \
  int64_t find_below(const T* x, int64_t n, T bound) {         \
    return HWY_DYNAMIC_DISPATCH(first_below_##T)(x, n, bound); \
  }
TREADLE_BEYOND_TYPES(TREADLE_FIND_BEYOND)
#undef TREADLE_FIND_BEYOND

}  // namespace treadle::kernels
#endif
