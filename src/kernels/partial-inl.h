// Loads and stores of partial vectors, of which only the first lanes are in memory. If no instruction masks memory (NEON, Highway's
// emulation), Highway's MaskedLoad reads whole vectors, and BlendedStore reads them and writes them back. Both could access memory beyond
// the end of a buffer, or data that another thread writes.
#if defined(TREADLE_KERNELS_PARTIAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TREADLE_KERNELS_PARTIAL_INL_H_
#undef TREADLE_KERNELS_PARTIAL_INL_H_
#else
#define TREADLE_KERNELS_PARTIAL_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

/// True if masked loads and stores of 32-bit and 64-bit elements access only the masked lanes.
constexpr bool kMasksMemory = HWY_TARGET <= HWY_AVX2;

/// Selects the first `count` lanes of a vector (0 to all). Masked memory accesses use `mask`, other code uses `count`.
template <class D>
struct FirstLanes {
  hwy::HWY_NAMESPACE::Mask<D> mask;
  size_t count;
  HWY_INLINE FirstLanes(D d, int64_t lanes)
      : mask(hwy::HWY_NAMESPACE::FirstN(d, static_cast<size_t>(lanes))), count(static_cast<size_t>(lanes)) {}
};

/// Loads the first lanes; the remaining lanes are zero.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load_first(D d, const FirstLanes<D>& first, const hwy::HWY_NAMESPACE::TFromD<D>* from) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (kMasksMemory) {
    return hn::MaskedLoad(first.mask, d, from);
  } else {
    HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())] = {};
    __builtin_memcpy(lanes, from, first.count * sizeof lanes[0]);
    return hn::Load(d, lanes);
  }
}

/// Loads lanes [first, last) of the vector at `from`; the remaining lanes are zero.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load_between(D d, int64_t first, int64_t last, const hwy::HWY_NAMESPACE::TFromD<D>* from) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (kMasksMemory) {
    return hn::MaskedLoad(hn::AndNot(FirstLanes<D>(d, first).mask, FirstLanes<D>(d, last).mask), d, from);
  } else {
    HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())] = {};
    __builtin_memcpy(lanes + first, from + first, static_cast<size_t>(last - first) * sizeof lanes[0]);
    return hn::Load(d, lanes);
  }
}

template <class D>
HWY_INLINE void store_first(hwy::HWY_NAMESPACE::Vec<D> v, D d, const FirstLanes<D>& first, hwy::HWY_NAMESPACE::TFromD<D>* to) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (kMasksMemory) {
    hn::BlendedStore(v, first.mask, d, to);
  } else {
    HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
    hn::Store(v, d, lanes);
    __builtin_memcpy(to, lanes, first.count * sizeof lanes[0]);
  }
}

}  // namespace
}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TREADLE_KERNELS_PARTIAL_INL_H_
