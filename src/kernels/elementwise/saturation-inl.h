// Converts floats to bytes by saturating instructions, compiled for each instruction set (Highway's foreach_target).
// TREADLE_QUANTIZES_BY_SATURATION is 1 if the instruction set has them.
#if defined(TREADLE_KERNELS_ELEMENTWISE_SATURATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TREADLE_KERNELS_ELEMENTWISE_SATURATION_INL_H_
#undef TREADLE_KERNELS_ELEMENTWISE_SATURATION_INL_H_
#else
#define TREADLE_KERNELS_ELEMENTWISE_SATURATION_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/bounds-inl.h"

#undef TREADLE_QUANTIZES_BY_SATURATION
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define TREADLE_QUANTIZES_BY_SATURATION 1
#else
#define TREADLE_QUANTIZES_BY_SATURATION 0
#endif

#if TREADLE_QUANTIZES_BY_SATURATION
HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

using Floats = hwy::HWY_NAMESPACE::ScalableTag<float>;
using Halves = hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::Repartition<int16_t, Floats>>;

#if HWY_TARGET <= HWY_AVX3
#define TREADLE_WIDE(NAME) _mm512_##NAME
#else
#define TREADLE_WIDE(NAME) _mm256_##NAME
#endif
HWY_INLINE hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::RebindToSigned<Floats>> nearest_ints(hwy::HWY_NAMESPACE::Vec<Floats> v) {
  return {TREADLE_WIDE(cvtps_epi32)(v.raw)};
}
template <typename Code>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::Repartition<Code, Floats>> packed_bytes(Halves x, Halves y) {
  if constexpr (std::is_signed_v<Code>) return {TREADLE_WIDE(packs_epi16)(x.raw, y.raw)};
  return {TREADLE_WIDE(packus_epi16)(x.raw, y.raw)};
}
#undef TREADLE_WIDE

/// Computes saturate(round_to_even(q) + zero) for four vectors; NaN gives the lowest code. The packing instructions saturate. The
/// conversion to int32 turns NaN and numbers out of range into the lowest int32, so only large positive numbers need a clamp.
template <typename Code, class V = hwy::HWY_NAMESPACE::Vec<Floats>>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::Repartition<Code, Floats>> saturated_codes(V q0, V q1, V q2, V q3, Halves zero) {
  namespace hn = hwy::HWY_NAMESPACE;
  const Floats d;
  const hn::Repartition<int16_t, Floats> halves;
  const hn::Repartition<uint32_t, Floats> lanes;
  constexpr uint32_t kBlocks = hn::MaxLanes(Floats()) / 4;
  HWY_ALIGN uint32_t of_blocks[4 * kBlocks];  // packing works within blocks of 16 bytes: four bytes of each of four vectors
  for (uint32_t i = 0; i < 4 * kBlocks; ++i) of_blocks[i] = i % kBlocks * 4 + i / kBlocks;
  const V bound = hn::Set(d, 1e9F);
  const auto half = [&](V x, V y) HWY_ATTR {
    const auto both = hn::ReorderDemote2To(halves, nearest_ints(at_most(bound, x)), nearest_ints(at_most(bound, y)));
    return hn::SaturatedAdd(both, zero);
  };
  const auto mixed = hn::BitCast(lanes, packed_bytes<Code>(half(q0, q1), half(q2, q3)));
  return hn::BitCast(hn::Repartition<Code, Floats>(), hn::TableLookupLanes(mixed, hn::SetTableIndices(lanes, of_blocks)));
}

/// Returns what divided_codes() multiplies by: 1 / scale, or NaN if that has not the precision of normal numbers.
HWY_INLINE float inverse_of(float scale) {
  return scale >= 0x1p-100F && scale <= 0x1p100F ? 1 / scale : std::numeric_limits<float>::quiet_NaN();
}

/// Computes saturated_codes() of the quotients v / scale. A division takes several times as long as all else, so this multiplies by the
/// inverse instead, unless a product is so close to the middle between two integers that the quotient could be rounded to the other one. A
/// product differs from the quotient by less than 2^-22 of it, and numbers beyond 1024 saturate.
template <typename Code, class V = hwy::HWY_NAMESPACE::Vec<Floats>>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::Repartition<Code, Floats>> divided_codes(V v0, V v1, V v2, V v3, V scale, V inverse,
                                                                                                Halves zero) {
  namespace hn = hwy::HWY_NAMESPACE;
  const Floats d;
  const V q0 = hn::Mul(v0, inverse), q1 = hn::Mul(v1, inverse), q2 = hn::Mul(v2, inverse), q3 = hn::Mul(v3, inverse);
  const V limit = hn::Set(d, 0.5F - 0x1p-12F);
  const auto is_clear = [&](V q) HWY_ATTR { return hn::Lt(hn::Abs(hn::Sub(q, hn::Round(q))), limit); };
  if (HWY_LIKELY(hn::AllTrue(d, hn::And(hn::And(is_clear(q0), is_clear(q1)), hn::And(is_clear(q2), is_clear(q3))))))
    return saturated_codes<Code>(q0, q1, q2, q3, zero);
  return saturated_codes<Code>(hn::Div(v0, scale), hn::Div(v1, scale), hn::Div(v2, scale), hn::Div(v3, scale), zero);
}

}  // namespace
}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // TREADLE_KERNELS_ELEMENTWISE_SATURATION_INL_H_
