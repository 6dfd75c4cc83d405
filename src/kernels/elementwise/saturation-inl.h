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

}  // namespace
}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // TREADLE_KERNELS_ELEMENTWISE_SATURATION_INL_H_
