#include "kernels/elementwise/choose.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/choose.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void choose_words(const bool* condition, const uint32_t* x, int64_t step_x, const uint32_t* y, int64_t step_y, uint32_t* dst, int64_t n) {
  const hn::ScalableTag<uint32_t> d;
  const hn::Rebind<uint8_t, decltype(d)> bytes;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto* conditions = reinterpret_cast<const uint8_t*>(condition);
  int64_t i = 0;
  if (n >= lanes) {
    const auto all_x = hn::Set(d, *x), all_y = hn::Set(d, *y);
    for (; i + lanes <= n; i += lanes) {
      const auto taken = hn::Ne(hn::PromoteTo(d, hn::LoadU(bytes, conditions + i)), hn::Zero(d));
      const auto a = step_x == 0 ? all_x : hn::LoadU(d, x + i), b = step_y == 0 ? all_y : hn::LoadU(d, y + i);
      hn::StoreU(hn::IfThenElse(taken, a, b), d, dst + i);
    }
  }
  for (; i < n; ++i) dst[i] = condition[i] ? x[i * step_x] : y[i * step_y];
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(choose_words);

void choose(const bool* condition, const uint32_t* x, int64_t step_x, const uint32_t* y, int64_t step_y, uint32_t* dst, int64_t n) {
  HWY_DYNAMIC_DISPATCH(choose_words)(condition, x, step_x, y, step_y, dst, n);
}

}  // namespace treadle::kernels
#endif
