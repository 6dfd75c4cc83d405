#include "kernels/elementwise/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/convert.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <limits>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void round_integers_plain(const int64_t* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(src[i]);
}
void truncate_plain(const float* src, int64_t* dst, int64_t n) {
  constexpr float kLimit = 9223372036854775808.0F;
  for (int64_t i = 0; i < n; ++i)
    dst[i] = src[i] >= -kLimit && src[i] < kLimit ? static_cast<int64_t>(src[i]) : std::numeric_limits<int64_t>::min();
}

// Portable targets have no conversion instruction, and Float16's own conversion is as fast as Highway's emulation.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void widen_f16(const Float16* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(src[i]);
}
void narrow_f16(const float* src, Float16* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = Float16(src[i]);
}
void round_integers(const int64_t* src, float* dst, int64_t n) { round_integers_plain(src, dst, n); }
void truncate(const float* src, int64_t* dst, int64_t n) { truncate_plain(src, dst, n); }

#else

void widen_f16(const Float16* src, float* dst, int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto* from = reinterpret_cast<const hwy::float16_t*>(src);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, from + i)), d, dst + i);
  for (; i < n; ++i) dst[i] = static_cast<float>(src[i]);
}

void narrow_f16(const float* src, Float16* dst, int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto* to = reinterpret_cast<hwy::float16_t*>(dst);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::DemoteTo(half, hn::LoadU(d, src + i)), half, to + i);
  for (; i < n; ++i) dst[i] = Float16(src[i]);
}

// Converts the numbers of a vector as 32-bit integers if all fit, which is nearly always so, because there is no instruction to convert
// 64-bit integers before AVX-512.
void round_integers(const int64_t* src, float* dst, int64_t n) {
  const hn::ScalableTag<int32_t> words;
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(words));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto* from = reinterpret_cast<const int32_t*>(src + i);
    const auto a = hn::LoadU(words, from), b = hn::LoadU(words, from + lanes);
    const auto low = hn::ConcatEven(words, b, a), high = hn::ConcatOdd(words, b, a);
    if (hn::AllTrue(words, hn::Eq(high, hn::ShiftRight<31>(low))))
      hn::StoreU(hn::ConvertTo(d, low), d, dst + i);
    else
      round_integers_plain(src + i, dst + i, lanes);
  }
  round_integers_plain(src + i, dst + i, n - i);
}

void truncate(const float* src, int64_t* dst, int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> words;
  const hn::Half<decltype(words)> half;
  const hn::ScalableTag<int64_t> wide;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, 2147483648.0F);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, src + i);
    if (hn::AllTrue(d, hn::Lt(hn::Abs(v), limit))) {
      const auto whole = hn::ConvertTo(words, v);
      hn::StoreU(hn::PromoteTo(wide, hn::LowerHalf(whole)), wide, dst + i);
      hn::StoreU(hn::PromoteTo(wide, hn::UpperHalf(half, whole)), wide, dst + i + lanes / 2);
    } else {
      truncate_plain(src + i, dst + i, lanes);
    }
  }
  truncate_plain(src + i, dst + i, n - i);
}

#endif

// A plain loop, since compilers vectorize these shifts and additions.
void widen_bf16(const BFloat16* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(src[i]);
}
void narrow_bf16(const float* src, BFloat16* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = BFloat16(src[i]);
}

// Floats of magnitude 2^31 or more are multiples of 256, so the lowest byte of such an integer is 0.
void narrow_bytes(const float* src, uint8_t* dst, int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> words;
  const hn::Rebind<uint8_t, decltype(d)> bytes;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, 2147483648.0F);
  auto lowest = [&](auto v) {
    const auto whole = hn::ConvertTo(words, hn::IfThenElseZero(hn::Lt(hn::Abs(v), limit), v));
    return hn::DemoteTo(bytes, hn::And(whole, hn::Set(words, 0xFF)));
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(lowest(hn::LoadU(d, src + i)), bytes, dst + i);
  for (; i < n; ++i) dst[i] = hn::GetLane(lowest(hn::Set(d, src[i])));
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(widen_f16);
HWY_EXPORT(narrow_f16);
HWY_EXPORT(widen_bf16);
HWY_EXPORT(narrow_bf16);
HWY_EXPORT(narrow_bytes);
HWY_EXPORT(round_integers);
HWY_EXPORT(truncate);

void widen(const Float16* src, float* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(widen_f16)(src, dst, n); }
void widen(const BFloat16* src, float* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(widen_bf16)(src, dst, n); }
void narrow(const float* src, Float16* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(narrow_f16)(src, dst, n); }
void narrow(const float* src, BFloat16* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(narrow_bf16)(src, dst, n); }
void narrow(const float* src, uint8_t* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(narrow_bytes)(src, dst, n); }
void to_float(const int64_t* src, float* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(round_integers)(src, dst, n); }
void to_int64(const float* src, int64_t* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(truncate)(src, dst, n); }

}  // namespace treadle::kernels
#endif
