// Maximum and minimum with the same result for NaN on every instruction set. For Highway's own functions, this result is undefined: x86
// returns the second operand, ARM and plain C++ the one that is a number. This file also converts doubles to floats with infinity on
// overflow, where Highway's plain C++ gives the largest float.
#if defined(TREADLE_KERNELS_BOUNDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TREADLE_KERNELS_BOUNDS_INL_H_
#undef TREADLE_KERNELS_BOUNDS_INL_H_
#else
#define TREADLE_KERNELS_BOUNDS_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_SSSE3
constexpr bool kSecondIfNan = true;  // these instructions return the second operand if one is NaN
#else
constexpr bool kSecondIfNan = false;
#endif

/// Returns low > x ? low : x, which is x if x is NaN.
template <class V>
HWY_INLINE V at_least(V low, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (kSecondIfNan) return hn::Max(low, x);
  return hn::IfThenElse(hn::Gt(low, x), low, x);
}

/// Returns high < x ? high : x, which is x if x is NaN.
template <class V>
HWY_INLINE V at_most(V high, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (kSecondIfNan) return hn::Min(high, x);
  return hn::IfThenElse(hn::Lt(high, x), high, x);
}

template <class DFloat, class VDouble>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<DFloat> to_float([[maybe_unused]] DFloat d, VDouble v) {
#if HWY_TARGET == HWY_SCALAR
  return hwy::HWY_NAMESPACE::Vec<DFloat>(static_cast<float>(v.raw));
#elif HWY_TARGET == HWY_EMU128
  hwy::HWY_NAMESPACE::Vec<DFloat> narrow;
  for (size_t i = 0; i < hwy::HWY_NAMESPACE::MaxLanes(d); ++i) narrow.raw[i] = static_cast<float>(v.raw[i]);
  return narrow;
#else
  return hwy::HWY_NAMESPACE::DemoteTo(d, v);
#endif
}

}  // namespace
}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TREADLE_KERNELS_BOUNDS_INL_H_
