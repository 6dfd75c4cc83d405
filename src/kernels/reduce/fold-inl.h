// Inner loops of reductions (folds), written so that compilers vectorize them for each instruction set.
#if defined(TREADLE_KERNELS_REDUCE_FOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TREADLE_KERNELS_REDUCE_FOLD_INL_H_
#undef TREADLE_KERNELS_REDUCE_FOLD_INL_H_
#else
#define TREADLE_KERNELS_REDUCE_FOLD_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>
#include <type_traits>

#include "kernels/reduce/fold.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Selects the unsigned type of the same size, in which overflow is defined.
template <class A>
using Wrapping = typename std::conditional_t<std::is_integral_v<A>, std::make_unsigned<A>, std::type_identity<A>>::type;

struct SumOf {
  static constexpr bool kIsElement = false;
  template <class A>
  static HWY_INLINE A map(A x) {
    return x;
  }
  template <class A>
  static HWY_INLINE A join(A a, A b) {
    return static_cast<A>(static_cast<Wrapping<A>>(a) + static_cast<Wrapping<A>>(b));
  }
};
struct SumOfAbs : SumOf {
  template <class A>
  static HWY_INLINE A map(A x) {
    return x < A{0} ? static_cast<A>(-static_cast<Wrapping<A>>(x)) : x;
  }
};
struct SumOfSquares : SumOf {
  template <class A>
  static HWY_INLINE A map(A x) {
    return static_cast<A>(static_cast<Wrapping<A>>(x) * static_cast<Wrapping<A>>(x));
  }
};
struct ProductOf {
  static constexpr bool kIsElement = false;
  template <class A>
  static HWY_INLINE A map(A x) {
    return x;
  }
  template <class A>
  static HWY_INLINE A join(A a, A b) {
    return static_cast<A>(static_cast<Wrapping<A>>(a) * static_cast<Wrapping<A>>(b));
  }
};
struct MaxOf {
  static constexpr bool kIsElement = true;
  template <class A>
  static HWY_INLINE A map(A x) {
    return x;
  }
  template <class A>
  static HWY_INLINE A join(A a, A b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};
struct MinOf {
  static constexpr bool kIsElement = true;
  template <class A>
  static HWY_INLINE A map(A x) {
    return x;
  }
  template <class A>
  static HWY_INLINE A join(A a, A b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};

// The type in which a fold combines elements. A fold that returns one of the elements (max, min) needs no wider type than theirs.
template <class F, typename T>
using ChainOf = std::conditional_t<F::kIsElement && std::is_integral_v<T>, T, FoldChain<T>>;

// Combines the partial results of kChains chains to one.
template <class F, int kChains, class A>
HWY_INLINE A join_chains(A* chain) {
  for (int half = kChains / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) chain[j] = F::join(chain[j], chain[j + half]);
  }
  return chain[0];
}

// Folds one run in kChains chains, which compilers vectorize. Floats are summed in short blocks, which are added to `total` in double.
template <class F, typename T>
FoldTotal<T> fold_run(const T* x, int64_t n, int64_t stride, FoldTotal<T> total) {
  using A = ChainOf<F, T>;
  constexpr int kChains = 32;
  constexpr int64_t kBlock = 2048;
  if (stride != 1) {
    for (int64_t i = 0; i < n; ++i) total = F::join(total, static_cast<FoldTotal<T>>(F::map(static_cast<A>(x[i * stride]))));
    return total;
  }
  while (n >= kChains) {
    const int64_t block = (n < kBlock ? n : kBlock) / kChains * kChains;
    A chain[kChains];
    for (int64_t j = 0; j < kChains; ++j) chain[j] = F::map(static_cast<A>(x[j]));
    for (int64_t i = kChains; i < block; i += kChains) {
      for (int64_t j = 0; j < kChains; ++j) chain[j] = F::join(chain[j], F::map(static_cast<A>(x[i + j])));
    }
    total = F::join(total, static_cast<FoldTotal<T>>(join_chains<F, kChains>(chain)));
    x += block;
    n -= block;
  }
  for (int64_t i = 0; i < n; ++i) total = F::join(total, static_cast<FoldTotal<T>>(F::map(static_cast<A>(x[i]))));
  return total;
}

// The following functions compute the maximum or minimum of a row with vectors.

template <typename T>
inline constexpr bool kHasExtremes = std::is_arithmetic_v<T> && (sizeof(T) <= 4 || std::is_same_v<T, double>);

template <bool kLargest, class V>
HWY_INLINE V extreme(V a, V b) {
  return kLargest ? hn::Max(a, b) : hn::Min(a, b);
}

#if HWY_TARGET == HWY_SCALAR

template <bool kLargest, class D>
HWY_INLINE hn::TFromD<D> extreme_lane(D, hn::Vec<D> v) {
  return hn::GetLane(v);
}

#else

template <bool kLargest, class D>
HWY_INLINE hn::TFromD<D> extreme_lane(D d, hn::Vec<D> v) {
  constexpr size_t kBytes = sizeof(hn::TFromD<D>);
  if constexpr (hn::MaxLanes(d) * kBytes > 16) {
    const hn::Half<D> half;
    return extreme_lane<kLargest>(half, extreme<kLargest>(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    v = extreme<kLargest>(v, hn::CombineShiftRightBytes<8>(d, v, v));
    if constexpr (kBytes <= 4) v = extreme<kLargest>(v, hn::CombineShiftRightBytes<4>(d, v, v));
    if constexpr (kBytes <= 2) v = extreme<kLargest>(v, hn::CombineShiftRightBytes<2>(d, v, v));
    if constexpr (kBytes == 1) v = extreme<kLargest>(v, hn::CombineShiftRightBytes<1>(d, v, v));
    return hn::GetLane(v);
  }
}

#endif

// Returns the extreme (maximum or minimum) of n elements, or NaN if one of them is NaN. The last vector may overlap the previous one, which
// does not change the result. @pre n >= lanes
template <bool kLargest, typename T>
T extreme_of_row(const T* x, int64_t n) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), end = n - lanes;
  auto a = hn::LoadU(d, x), b = hn::LoadU(d, x + end);
  [[maybe_unused]] auto ordered = hn::And(hn::Eq(a, a), hn::Eq(b, b));
  auto take = [&](auto& best, const T* from) HWY_ATTR {
    const auto v = hn::LoadU(d, from);
    if constexpr (std::is_floating_point_v<T>) ordered = hn::And(ordered, hn::Eq(v, v));
    best = extreme<kLargest>(best, v);
  };
  int64_t i = lanes;
  for (; i + lanes < end; i += 2 * lanes) {
    take(a, x + i);
    take(b, x + i + lanes);
  }
  if (i < end) take(a, x + i);
  if constexpr (std::is_floating_point_v<T>) {
    if (!hn::AllTrue(d, ordered)) return std::numeric_limits<T>::quiet_NaN();
  }
  return extreme_lane<kLargest>(d, extreme<kLargest>(a, b));
}

// Handles many adjacent outputs: combines columns[j] with element j of each of the `rows` rows of x.
template <class F, typename T>
void fold_columns(const T* x, int64_t rows, int64_t row_stride, int64_t n, FoldTotal<T>* columns) {
  using A = ChainOf<F, T>;
  constexpr int64_t kBlock = 64;  // number of rows that are summed in float; these sums are then added in double
  A chain[kFoldColumns];
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock) {
    const int64_t r1 = r0 + kBlock < rows ? r0 + kBlock : rows;
    for (int64_t j = 0; j < n; ++j) chain[j] = F::map(static_cast<A>(x[r0 * row_stride + j]));
    for (int64_t r = r0 + 1; r < r1; ++r) {
      const T* row = x + r * row_stride;
      for (int64_t j = 0; j < n; ++j) chain[j] = F::join(chain[j], F::map(static_cast<A>(row[j])));
    }
    for (int64_t j = 0; j < n; ++j) columns[j] = F::join(columns[j], static_cast<FoldTotal<T>>(chain[j]));
  }
}

template <typename T>
FoldTotal<T> fold_run_of(Fold fold, const T* x, int64_t n, int64_t stride, FoldTotal<T> total) {
  if constexpr (kHasExtremes<T>) {
    if (stride == 1 && n >= static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()))) {
      if (fold == Fold::max) return MaxOf::join(total, static_cast<FoldTotal<T>>(extreme_of_row<true>(x, n)));
      if (fold == Fold::min) return MinOf::join(total, static_cast<FoldTotal<T>>(extreme_of_row<false>(x, n)));
    }
  }
  switch (fold) {
    case Fold::sum: return fold_run<SumOf>(x, n, stride, total);
    case Fold::sum_abs: return fold_run<SumOfAbs>(x, n, stride, total);
    case Fold::sum_square: return fold_run<SumOfSquares>(x, n, stride, total);
    case Fold::prod: return fold_run<ProductOf>(x, n, stride, total);
    case Fold::max: return fold_run<MaxOf>(x, n, stride, total);
    case Fold::min: return fold_run<MinOf>(x, n, stride, total);
  }
  return total;
}

template <typename T>
void fold_rows_of(Fold fold, const T* x, int64_t count, int64_t row_stride, int64_t n, FoldTotal<T>* totals) {
  for (int64_t i = 0; i < count; ++i) totals[i] = fold_run_of(fold, x + i * row_stride, n, 1, totals[i]);
}

template <typename T>
void fold_columns_of(Fold fold, const T* x, int64_t rows, int64_t row_stride, int64_t n, FoldTotal<T>* columns) {
  switch (fold) {
    case Fold::sum: return fold_columns<SumOf>(x, rows, row_stride, n, columns);
    case Fold::sum_abs: return fold_columns<SumOfAbs>(x, rows, row_stride, n, columns);
    case Fold::sum_square: return fold_columns<SumOfSquares>(x, rows, row_stride, n, columns);
    case Fold::prod: return fold_columns<ProductOf>(x, rows, row_stride, n, columns);
    case Fold::max: return fold_columns<MaxOf>(x, rows, row_stride, n, columns);
    case Fold::min: return fold_columns<MinOf>(x, rows, row_stride, n, columns);
  }
}

}  // namespace
}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TREADLE_KERNELS_REDUCE_FOLD_INL_H_
