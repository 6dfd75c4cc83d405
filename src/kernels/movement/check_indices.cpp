#include "kernels/movement/gather.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/movement/check_indices.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Returns true if all indices are in [low, high].
template <typename Index>
bool are_within(const Index* indices, int64_t n, Index low, Index high) {
  const hn::ScalableTag<Index> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto least = hn::Set(d, low), most = hn::Set(d, high);
  auto outside = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto index = hn::LoadU(d, indices + i);
    outside = hn::Or(outside, hn::VecFromMask(d, hn::Or(hn::Lt(index, least), hn::Gt(index, most))));
  }
  bool within = hn::AllTrue(d, hn::Eq(outside, hn::Zero(d)));
  for (; i < n; ++i) within &= low <= indices[i] && indices[i] <= high;
  return within;
}
bool words_within(const int32_t* indices, int64_t n, int32_t low, int32_t high) { return are_within(indices, n, low, high); }
bool long_words_within(const int64_t* indices, int64_t n, int64_t low, int64_t high) { return are_within(indices, n, low, high); }

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(words_within);
HWY_EXPORT(long_words_within);

void check_indices(const int32_t* indices, int64_t n, int64_t extent) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const auto high = static_cast<int32_t>(std::min(extent, kMost) - 1), low = static_cast<int32_t>(std::max(-extent, -kMost));
  if (extent > 0 && HWY_DYNAMIC_DISPATCH(words_within)(indices, n, low, high)) return;
  for (int64_t i = 0; i < n; ++i) checked_index(indices[i], extent);
}
void check_indices(const int64_t* indices, int64_t n, int64_t extent) {
  if (extent > 0 && HWY_DYNAMIC_DISPATCH(long_words_within)(indices, n, -extent, extent - 1)) return;
  for (int64_t i = 0; i < n; ++i) checked_index(indices[i], extent);
}

}  // namespace treadle::kernels
#endif
