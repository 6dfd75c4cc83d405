#include "kernels/elementwise/compare.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/compare.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <functional>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Vectors, class Scalars>
void compare_rows(const int64_t* a, const int64_t* b, bool* dst, int64_t n, Vectors compare, Scalars compare_one) {
  const hn::ScalableTag<int64_t> d;
  const hn::RebindToUnsigned<decltype(d)> words;
  const hn::Rebind<uint8_t, decltype(d)> bytes;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto* to = reinterpret_cast<uint8_t*>(dst);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto holds = hn::VecFromMask(d, compare(hn::LoadU(d, a + i), hn::LoadU(d, b + i)));
    hn::StoreU(hn::TruncateTo(bytes, hn::And(hn::BitCast(words, holds), hn::Set(words, 1))), bytes, to + i);
  }
  for (; i < n; ++i) dst[i] = compare_one(a[i], b[i]);
}

void equal_rows(const int64_t* a, const int64_t* b, bool* dst, int64_t n) {
  compare_rows(
      a, b, dst, n, [](auto x, auto y) { return hn::Eq(x, y); }, std::equal_to<>());
}
void less_rows(const int64_t* a, const int64_t* b, bool* dst, int64_t n) {
  compare_rows(
      a, b, dst, n, [](auto x, auto y) { return hn::Lt(x, y); }, std::less<>());
}
void less_or_equal_rows(const int64_t* a, const int64_t* b, bool* dst, int64_t n) {
  compare_rows(
      a, b, dst, n, [](auto x, auto y) { return hn::Not(hn::Lt(y, x)); }, std::less_equal<>());
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(equal_rows);
HWY_EXPORT(less_rows);
HWY_EXPORT(less_or_equal_rows);

void equal(const int64_t* a, const int64_t* b, bool* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(equal_rows)(a, b, dst, n); }
void less(const int64_t* a, const int64_t* b, bool* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(less_rows)(a, b, dst, n); }
void less_or_equal(const int64_t* a, const int64_t* b, bool* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(less_or_equal_rows)(a, b, dst, n); }

}  // namespace treadle::kernels
#endif
