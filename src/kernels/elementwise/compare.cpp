#include "kernels/elementwise/compare.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/compare.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <functional>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sets dst[i] to holds(d, i) for whole vectors of indices, and to one(i) for the remaining indices.
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

// Sets dst[i] to holds(d, i) for whole vectors of 32-bit lanes, and to one(i) for the rest. The bools of four vectors are packed into one,
// which has the order [16-byte block, lane, vector]; they are then reordered to [vector, block, lane].
template <class Vectors, class Scalars>
void write_bools_of_words(bool* dst, int64_t n, [[maybe_unused]] Vectors holds, Scalars one) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<uint32_t> d;
  const hn::Repartition<uint8_t, decltype(d)> bytes;
  constexpr uint32_t kMaxBlocks = hn::MaxLanes(d) / 4;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto blocks = static_cast<uint32_t>(lanes / 4);
  HWY_ALIGN uint32_t of_blocks[4 * kMaxBlocks];
  for (uint32_t i = 0; i < 4 * blocks; ++i) of_blocks[i] = i % blocks * 4 + i / blocks;
  const auto places = hn::SetTableIndices(d, of_blocks);
  HWY_ALIGN static constexpr uint8_t kLanesOfVectors[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  const auto lanes_of_vectors = hn::LoadDup128(bytes, kLanesOfVectors);
  auto* to = reinterpret_cast<uint8_t*>(dst);
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto bit = [&](int k) HWY_ATTR { return hn::IfThenElseZero(holds(d, i + k * lanes), hn::Set(d, uint32_t{1} << (8 * k))); };
    const auto mixed = hn::BitCast(bytes, hn::Or(hn::Or(bit(0), bit(1)), hn::Or(bit(2), bit(3))));
    const auto in_blocks = hn::BitCast(d, hn::TableLookupBytes(mixed, lanes_of_vectors));
    hn::StoreU(hn::BitCast(bytes, hn::TableLookupLanes(in_blocks, places)), bytes, to + i);
  }
#endif
  for (; i < n; ++i) dst[i] = one(i);
}

// NaN counts as nonzero. Ne() would give false for it.
void nonzero_floats(const float* x, bool* dst, int64_t n) {
  const hn::ScalableTag<float> floats;
  write_bools_of_words(
      dst, n, [&](auto d, int64_t i) HWY_ATTR { return hn::Not(hn::RebindMask(d, hn::Eq(hn::LoadU(floats, x + i), hn::Zero(floats)))); },
      [&](int64_t i) { return x[i] != 0; });
}

// Compares bits: the exponent bits of an infinity are all ones, and its mantissa is zero.
void infinite_floats(const float* x, bool negative, bool positive, bool* dst, int64_t n) {
  constexpr uint32_t kInfinity = 0x7F800000, kSign = 0x80000000;
  if (!negative && !positive) return (void)std::fill_n(dst, n, false);
  const auto* words = reinterpret_cast<const uint32_t*>(x);
  const uint32_t mask = negative && positive ? ~kSign : ~uint32_t{0}, wanted = positive ? kInfinity : kInfinity | kSign;
  write_bools_of_words(
      dst, n, [&](auto d, int64_t i) HWY_ATTR { return hn::Eq(hn::And(hn::LoadU(d, words + i), hn::Set(d, mask)), hn::Set(d, wanted)); },
      [&](int64_t i) { return (std::bit_cast<uint32_t>(x[i]) & mask) == wanted; });
}

template <bool kLeft, typename T>
void shift_rows(const T* x, const T* by, T* dst, int64_t n) {
  constexpr T kWidth = sizeof(T) * 8;
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto width = hn::Set(d, kWidth), highest = hn::Set(d, static_cast<T>(kWidth - 1));  // shifts are defined up to `highest`
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto value = hn::LoadU(d, x + i), bits = hn::LoadU(d, by + i);
    const auto count = hn::And(bits, highest), shifted = kLeft ? hn::Shl(value, count) : hn::Shr(value, count);
    hn::StoreU(hn::IfThenElseZero(hn::Lt(bits, width), shifted), d, dst + i);
  }
  for (; i < n; ++i) dst[i] = by[i] >= kWidth ? T{0} : kLeft ? x[i] << by[i] : x[i] >> by[i];
}
void shift_left_32(const uint32_t* x, const uint32_t* by, uint32_t* dst, int64_t n) { shift_rows<true>(x, by, dst, n); }
void shift_left_64(const uint64_t* x, const uint64_t* by, uint64_t* dst, int64_t n) { shift_rows<true>(x, by, dst, n); }
void shift_right_32(const uint32_t* x, const uint32_t* by, uint32_t* dst, int64_t n) { shift_rows<false>(x, by, dst, n); }
void shift_right_64(const uint64_t* x, const uint64_t* by, uint64_t* dst, int64_t n) { shift_rows<false>(x, by, dst, n); }

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(equal_rows);
HWY_EXPORT(less_rows);
HWY_EXPORT(less_or_equal_rows);
HWY_EXPORT(nonzero_rows);
HWY_EXPORT(nonzero_floats);
HWY_EXPORT(infinite_floats);
HWY_EXPORT(shift_left_32);
HWY_EXPORT(shift_left_64);
HWY_EXPORT(shift_right_32);
HWY_EXPORT(shift_right_64);

void equal(const int64_t* a, const int64_t* b, bool* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(equal_rows)(a, b, dst, n); }
void less(const int64_t* a, const int64_t* b, bool* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(less_rows)(a, b, dst, n); }
void less_or_equal(const int64_t* a, const int64_t* b, bool* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(less_or_equal_rows)(a, b, dst, n); }
void nonzero(const int64_t* x, bool* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(nonzero_rows)(x, dst, n); }
void nonzero(const float* x, bool* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(nonzero_floats)(x, dst, n); }
void infinite(const float* x, bool negative, bool positive, bool* dst, int64_t n) {
  HWY_DYNAMIC_DISPATCH(infinite_floats)(x, negative, positive, dst, n);
}
void shift_left(const uint32_t* x, const uint32_t* by, uint32_t* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(shift_left_32)(x, by, dst, n); }
void shift_left(const uint64_t* x, const uint64_t* by, uint64_t* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(shift_left_64)(x, by, dst, n); }
void shift_right(const uint32_t* x, const uint32_t* by, uint32_t* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(shift_right_32)(x, by, dst, n); }
void shift_right(const uint64_t* x, const uint64_t* by, uint64_t* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(shift_right_64)(x, by, dst, n); }

}  // namespace treadle::kernels
#endif
