#include "kernels/image/squares.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/image/squares.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kPoints = SampledSquares<float>::kPoints;

/// Two adjacent elements along an axis: the index of the first, the weights of both, and which of them are inside the plane.
template <typename T>
struct PlainPair {
  int64_t first;
  T weight[2];
  bool taken[2];

  PlainPair(T place, int64_t extent) {
    constexpr T kFar = kFarPlace;
    const T x = place > -kFar ? std::min(place, kFar) : -kFar;  // clamps NaN too, so that the conversion to an integer is defined
    const T floor = std::floor(x), t = x - floor;
    first = std::clamp<int64_t>(static_cast<int64_t>(floor), 0, extent - 2);
    const int64_t beyond = static_cast<int64_t>(floor) - first;
    weight[0] = beyond == 0 ? 1 - t : t, weight[1] = beyond == 0 ? t : 1 - t;
    taken[0] = beyond == 0 || beyond == -1, taken[1] = beyond == 0 || beyond == 1;
  }
};

template <typename T>
void find_squares_plain(int64_t height, int64_t width, const T* rows, const T* columns, SampledSquares<T>& squares) {
  for (int64_t i = 0; i < kPoints; ++i) {
    const PlainPair<T> row(rows[i], height), column(columns[i], width);
    squares.offset[i] = row.first * width + column.first;
    for (int k = 0; k < 4; ++k) {
      squares.weight[i][k] = row.weight[k / 2] * column.weight[k % 2];
      squares.taken[i][k] = row.taken[k / 2] && column.taken[k % 2] ? -1 : 0;
    }
  }
}

template <typename T>
void sample_squares_plain(const SampledSquares<T>& squares, const T* plane, int64_t row, T* dst) {
  for (int64_t i = 0; i < kPoints; ++i) {
    const T *at = plane + squares.offset[i], *w = squares.weight[i];
    const typename SampledSquares<T>::Bits* taken = squares.taken[i];
    auto product = [&](int k, T value) { return (taken[k] ? value : T{0}) * w[k]; };
    dst[i] = (product(0, at[0]) + product(2, at[row])) + (product(1, at[1]) + product(3, at[row + 1]));
  }
}

#if HWY_TARGET == HWY_SCALAR

void find_squares_f32(int64_t height, int64_t width, const float* rows, const float* columns, SampledSquares<float>& squares) {
  find_squares_plain(height, width, rows, columns, squares);
}
void sample_squares_f32(const SampledSquares<float>& squares, const float* plane, int64_t row, float* dst) {
  sample_squares_plain(squares, plane, row, dst);
}

#else

/// Like PlainPair, for as many points as a vector has lanes.
template <class D>
struct PairVectors {
  using V = hn::Vec<D>;
  hn::Vec<hn::RebindToSigned<D> > first;
  V weight[2];
  hn::Mask<D> taken[2];

  HWY_INLINE PairVectors(D d, V place, int64_t extent) {
    const hn::RebindToSigned<D> integers;
    const V one = hn::Set(d, 1.0f), far = hn::Set(d, kFarPlace);
    const V x = hn::IfThenElse(hn::Gt(place, hn::Neg(far)), hn::Min(place, far), hn::Neg(far));
    const V floor = hn::Floor(x), t = hn::Sub(x, floor);
    const auto at = hn::ConvertTo(integers, floor);
    const int64_t last = std::min<int64_t>(extent - 2, INT32_MAX);
    first = hn::Min(hn::Max(at, hn::Zero(integers)), hn::Set(integers, static_cast<int32_t>(last)));
    const auto beyond = hn::Sub(at, first);
    const auto both = hn::RebindMask(d, hn::Eq(beyond, hn::Zero(integers)));
    const auto before = hn::RebindMask(d, hn::Eq(beyond, hn::Set(integers, -1)));
    const auto after = hn::RebindMask(d, hn::Eq(beyond, hn::Set(integers, 1)));
    weight[0] = hn::IfThenElse(both, hn::Sub(one, t), t);
    weight[1] = hn::IfThenElse(both, t, hn::Sub(one, t));
    taken[0] = hn::Or(both, before), taken[1] = hn::Or(both, after);
  }
};

void find_squares_f32(int64_t height, int64_t width, const float* rows, const float* columns, SampledSquares<float>& squares) {
  using D = hn::CappedTag<float, SampledSquares<float>::kPoints>;
  const D d;
  const hn::RebindToSigned<D> integers;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN int32_t top[kPoints], left[kPoints];
  for (int64_t i = 0; i < kPoints; i += lanes) {
    const PairVectors<D> row(d, hn::LoadU(d, rows + i), height), column(d, hn::LoadU(d, columns + i), width);
    hn::Store(row.first, integers, top + i);
    hn::Store(column.first, integers, left + i);
    auto weight = [&](int r, int c) { return hn::Mul(row.weight[r], column.weight[c]); };
    auto taken = [&](int r, int c) { return hn::VecFromMask(integers, hn::RebindMask(integers, hn::And(row.taken[r], column.taken[c]))); };
    hn::StoreInterleaved4(weight(0, 0), weight(0, 1), weight(1, 0), weight(1, 1), d, squares.weight[i]);
    hn::StoreInterleaved4(taken(0, 0), taken(0, 1), taken(1, 0), taken(1, 1), integers, squares.taken[i]);
  }
  for (int64_t i = 0; i < kPoints; ++i) squares.offset[i] = top[i] * width + left[i];
}

// The four elements of a square form one vector, loaded as two halves.
void sample_squares_f32(const SampledSquares<float>& squares, const float* plane, int64_t row, float* dst) {
  const hn::FixedTag<float, 4> d;
  const hn::RebindToSigned<decltype(d)> bits;
  const hn::FixedTag<float, 2> pair;
  auto products = [&](int64_t i) {
    const float* at = plane + squares.offset[i];
    const auto square = hn::Combine(d, hn::LoadU(pair, at + row), hn::LoadU(pair, at));
    return hn::Mul(hn::And(square, hn::BitCast(d, hn::LoadU(bits, squares.taken[i]))), hn::LoadU(d, squares.weight[i]));
  };
  auto sums_of_two = [&](auto a, auto b) { return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)); };
  for (int64_t i = 0; i < kPoints; i += 4) {
    const auto first = sums_of_two(products(i), products(i + 1)), second = sums_of_two(products(i + 2), products(i + 3));
    hn::StoreU(hn::Add(hn::ConcatLowerLower(d, second, first), hn::ConcatUpperUpper(d, second, first)), d, dst + i);
  }
}

#endif

void find_squares_f64(int64_t height, int64_t width, const double* rows, const double* columns, SampledSquares<double>& squares) {
  find_squares_plain(height, width, rows, columns, squares);
}
void sample_squares_f64(const SampledSquares<double>& squares, const double* plane, int64_t row, double* dst) {
  sample_squares_plain(squares, plane, row, dst);
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(find_squares_f32);
HWY_EXPORT(find_squares_f64);
HWY_EXPORT(sample_squares_f32);
HWY_EXPORT(sample_squares_f64);

template <>
void find_squares(int64_t height, int64_t width, const float* rows, const float* columns, SampledSquares<float>& squares) {
  HWY_DYNAMIC_DISPATCH(find_squares_f32)(height, width, rows, columns, squares);
}
template <>
void find_squares(int64_t height, int64_t width, const double* rows, const double* columns, SampledSquares<double>& squares) {
  HWY_DYNAMIC_DISPATCH(find_squares_f64)(height, width, rows, columns, squares);
}
template <>
void sample_squares(const SampledSquares<float>& squares, const float* plane, int64_t row, float* dst) {
  HWY_DYNAMIC_DISPATCH(sample_squares_f32)(squares, plane, row, dst);
}
template <>
void sample_squares(const SampledSquares<double>& squares, const double* plane, int64_t row, double* dst) {
  HWY_DYNAMIC_DISPATCH(sample_squares_f64)(squares, plane, row, dst);
}

}  // namespace treadle::kernels
#endif
