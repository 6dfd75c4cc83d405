#include "kernels/elementwise/compare.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/compare.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <functional>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// dst[i] = holds(i) of a vector of places, and one(i) of the rest.
template <class Vectors, class Scalars>
void write_bools(bool* dst, int64_t n, Vectors holds, Scalars one) {
  const hn::ScalableTag<int64_t> d;
  const hn::RebindToUnsigned<decltype(d)> words;
  const hn::Rebind<uint8_t, decltype(d)> bytes;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto* to = reinterpret_cast<uint8_t*>(dst);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto mask = hn::VecFromMask(d, holds(d, i));
    hn::StoreU(hn::TruncateTo(bytes, hn::And(hn::BitCast(words, mask), hn::Set(words, 1))), bytes, to + i);
  }
  for (; i < n; ++i) dst[i] = one(i);
}

template <class Vectors, class Scalars>
void compare_rows(const int64_t* a, const int64_t* b, bool* dst, int64_t n, Vectors compare, Scalars compare_one) {
  write_bools(
      dst, n, [&](auto d, int64_t i) { return compare(hn::LoadU(d, a + i), hn::LoadU(d, b + i)); },
      [&](int64_t i) { return compare_one(a[i], b[i]); });
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

void nonzero_rows(const int64_t* x, bool* dst, int64_t n) {
  write_bools(
      dst, n, [&](auto d, int64_t i) { return hn::Ne(hn::LoadU(d, x + i), hn::Zero(d)); }, [&](int64_t i) { return x[i] != 0; });
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(equal_rows);
HWY_EXPORT(less_rows);
HWY_EXPORT(less_or_equal_rows);
HWY_EXPORT(nonzero_rows);

void equal(const int64_t* a, const int64_t* b, bool* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(equal_rows)(a, b, dst, n); }
void less(const int64_t* a, const int64_t* b, bool* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(less_rows)(a, b, dst, n); }
void less_or_equal(const int64_t* a, const int64_t* b, bool* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(less_or_equal_rows)(a, b, dst, n); }
void nonzero(const int64_t* x, bool* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(nonzero_rows)(x, dst, n); }

}  // namespace treadle::kernels
#endif
