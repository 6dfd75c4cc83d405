// Reductions of float32: short blocks are reduced in vectors of accumulators, and the blocks' results are combined in double.
#include <limits>

#include "kernels/reduce/fold.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/fold_f32.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/bounds-inl.h"
#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

struct SumOf {
  static constexpr float kIdentity = 0;
  template <class W>
  static HWY_INLINE W map(W x) {
    return x;
  }
  template <class W>
  static HWY_INLINE W join(W a, W b) {
    return hn::Add(a, b);
  }
  static double join(double a, double b) { return a + b; }
};
struct SumOfAbs : SumOf {
  template <class W>
  static HWY_INLINE W map(W x) {
    return hn::Abs(x);
  }
};
struct SumOfSquares : SumOf {
  template <class W>
  static HWY_INLINE W map(W x) {
    return hn::Mul(x, x);
  }
};
struct ProductOf {
  static constexpr float kIdentity = 1;
  template <class W>
  static HWY_INLINE W map(W x) {
    return x;
  }
  template <class W>
  static HWY_INLINE W join(W a, W b) {
    return hn::Mul(a, b);
  }
  static double join(double a, double b) { return a * b; }
};
// Computes the maximum of two vectors. at_least() and at_most() return the second operand if one is NaN, so they keep a NaN in `b`; the
// selection keeps a NaN in `a`.
struct MaxOf {
  static constexpr float kIdentity = -std::numeric_limits<float>::infinity();
  template <class W>
  static HWY_INLINE W map(W x) {
    return x;
  }
  template <class W>
  static HWY_INLINE W join(W a, W b) {
    return hn::IfThenElse(hn::Eq(a, a), at_least(a, b), a);
  }
  static double join(double a, double b) { return b > a || b != b ? b : a; }
};
struct MinOf {
  static constexpr float kIdentity = std::numeric_limits<float>::infinity();
  template <class W>
  static HWY_INLINE W map(W x) {
    return x;
  }
  template <class W>
  static HWY_INLINE W join(W a, W b) {
    return hn::IfThenElse(hn::Eq(a, a), at_most(a, b), a);
  }
  static double join(double a, double b) { return b < a || b != b ? b : a; }
};

// Combines the halves of a vector until four lanes are left.
template <class F, class DW>
HWY_INLINE auto join_to_four([[maybe_unused]] DW d, hn::Vec<DW> v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(DW()) > 4) {
    const hn::Half<DW> half;
    return join_to_four<F>(half, F::join(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else
#endif
    return v;
}
template <class F, class DW>
HWY_INLINE float join_lanes(DW d, hn::Vec<DW> v) {
  auto four = join_to_four<F>(d, v);
#if HWY_TARGET != HWY_SCALAR
  four = F::join(four, hn::Shuffle1032(four));
  four = F::join(four, hn::Shuffle2301(four));
#endif
  return hn::GetLane(four);
}

// Loads and maps a partial vector; the remaining lanes are set to the fold's identity.
template <class F, class DW>
HWY_INLINE hn::Vec<DW> some(DW d, const float* x, int64_t left) {
  const FirstLanes there(d, left);
  return hn::IfThenElse(there.mask, F::map(load_first(d, there, x)), hn::Set(d, F::kIdentity));
}

// Reduces up to kBlock elements to one vector.
constexpr int64_t kBlock = 2048;
template <class F>
HWY_INLINE V block(const float* x, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (n < lanes) return some<F>(d, x, n);
  V a = F::map(hn::LoadU(d, x));
  int64_t i = lanes;
  if (n >= 4 * lanes) {
    V b = F::map(hn::LoadU(d, x + i)), c = F::map(hn::LoadU(d, x + i + lanes)), e = F::map(hn::LoadU(d, x + i + 2 * lanes));
    for (i += 3 * lanes; i + 4 * lanes <= n; i += 4 * lanes) {
      a = F::join(a, F::map(hn::LoadU(d, x + i)));
      b = F::join(b, F::map(hn::LoadU(d, x + i + lanes)));
      c = F::join(c, F::map(hn::LoadU(d, x + i + 2 * lanes)));
      e = F::join(e, F::map(hn::LoadU(d, x + i + 3 * lanes)));
    }
    a = F::join(F::join(a, b), F::join(c, e));
  }
  for (; i + lanes <= n; i += lanes) a = F::join(a, F::map(hn::LoadU(d, x + i)));
  return i < n ? F::join(a, some<F>(d, x + i, n - i)) : a;
}

template <class F>
HWY_INLINE double run(const float* x, int64_t n, double total) {
  for (int64_t i = 0; i < n; i += kBlock)
    total = F::join(total, static_cast<double>(join_lanes<F>(D(), block<F>(x + i, n - i < kBlock ? n - i : kBlock))));
  return total;
}

#if HWY_TARGET != HWY_SCALAR
// Reduces contiguous rows of kLength elements, one vector of rows at a time. Returns the number of rows processed.
template <class F, int kLength>
int64_t short_rows(const float* x, int64_t count, double* totals) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float joined[hn::MaxLanes(D())];
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const float* from = x + i * kLength;
    V first, second, third, fourth;
    if constexpr (kLength == 2) hn::LoadInterleaved2(d, from, first, second);
    if constexpr (kLength == 3) hn::LoadInterleaved3(d, from, first, second, third);
    if constexpr (kLength == 4) hn::LoadInterleaved4(d, from, first, second, third, fourth);
    V total = F::join(F::map(first), F::map(second));
    if constexpr (kLength >= 3) total = F::join(total, F::map(third));
    if constexpr (kLength >= 4) total = F::join(total, F::map(fourth));
    hn::Store(total, d, joined);
    for (int64_t j = 0; j < lanes; ++j) totals[i + j] = F::join(totals[i + j], static_cast<double>(joined[j]));
  }
  return i;
}
#endif

template <class F>
void rows(const float* x, int64_t count, int64_t row_stride, int64_t n, double* totals) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if (row_stride == n) {
    if (n == 2) i = short_rows<F, 2>(x, count, totals);
    if (n == 3) i = short_rows<F, 3>(x, count, totals);
    if (n == 4) i = short_rows<F, 4>(x, count, totals);
  }
  if (n <= kBlock) {
    // Four rows are reduced to four lanes each; these lanes are then combined for all four rows together.
    const hn::CappedTag<float, 4> d;
    HWY_ALIGN float joined[4];
    auto four = [&](int64_t row) {
      if (n <= 4) return some<F>(d, x + row * row_stride, n);
      return join_to_four<F>(D(), block<F>(x + row * row_stride, n));
    };
    for (; i + 4 <= count; i += 4) {
      const auto a = four(i), b = four(i + 1), c = four(i + 2), e = four(i + 3);
      const auto ac = F::join(hn::InterleaveLower(d, a, c), hn::InterleaveUpper(d, a, c));
      const auto be = F::join(hn::InterleaveLower(d, b, e), hn::InterleaveUpper(d, b, e));
      hn::Store(F::join(hn::InterleaveLower(d, ac, be), hn::InterleaveUpper(d, ac, be)), d, joined);
      for (int64_t j = 0; j < 4; ++j) totals[i + j] = F::join(totals[i + j], static_cast<double>(joined[j]));
    }
  }
#endif
  for (; i < count; ++i) totals[i] = run<F>(x + i * row_stride, n, totals[i]);
}

// Reduces a strip of adjacent columns in registers, row by row.
template <class F, int kVectors>
HWY_INLINE void strip(const float* x, int64_t rows, int64_t row_stride, int64_t n, double* totals) {
  const D d;
  constexpr int64_t kRows = 64;  // number of rows that are summed in float; these sums are then added in double
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float joined[kVectors * hn::MaxLanes(D())];
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t last = rows - first < kRows ? rows : first + kRows;
    V sums[kVectors];
    for (int v = 0; v < kVectors; ++v) sums[v] = hn::Set(d, F::kIdentity);
    for (int64_t r = first; r < last; ++r) {
      const float* row = x + r * row_stride;
      if (n == kVectors * lanes) {
        for (int v = 0; v < kVectors; ++v) sums[v] = F::join(sums[v], F::map(hn::LoadU(d, row + v * lanes)));
      } else {
        sums[0] = F::join(sums[0], some<F>(d, row, n));
      }
    }
    for (int v = 0; v < kVectors; ++v) hn::Store(sums[v], d, joined + v * lanes);
    for (int64_t j = 0; j < n; ++j) totals[j] = F::join(totals[j], static_cast<double>(joined[j]));
  }
}

template <class F>
void columns(const float* x, int64_t rows, int64_t row_stride, int64_t n, double* totals) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  int64_t j = 0;
  for (; j + 4 * lanes <= n; j += 4 * lanes) strip<F, 4>(x + j, rows, row_stride, 4 * lanes, totals + j);
  for (; j < n; j += lanes) strip<F, 1>(x + j, rows, row_stride, n - j < lanes ? n - j : lanes, totals + j);
}

// Calls fn with the class that implements the fold.
template <class Fn>
HWY_INLINE auto visit(Fold fold, Fn&& fn) {
  switch (fold) {
    case Fold::sum_abs: return fn(SumOfAbs());
    case Fold::sum_square: return fn(SumOfSquares());
    case Fold::prod: return fn(ProductOf());
    case Fold::max: return fn(MaxOf());
    case Fold::min: return fn(MinOf());
    default: return fn(SumOf());
  }
}

}  // namespace

void fold_rows_f32(Fold fold, const float* x, int64_t count, int64_t row_stride, int64_t n, double* totals) {
  visit(fold, [&](auto f) { rows<decltype(f)>(x, count, row_stride, n, totals); });
}
double fold_run_f32(Fold fold, const float* x, int64_t n, double total) {
  return visit(fold, [&](auto f) { return run<decltype(f)>(x, n, total); });
}
double fold_strided_f32(Fold fold, const float* x, int64_t n, int64_t stride, double total) {
  const hn::CappedTag<float, 1> one;
  return visit(fold, [&](auto f) {
    using F = decltype(f);
    double joined = total;
    for (int64_t i = 0; i < n; ++i) joined = F::join(joined, static_cast<double>(hn::GetLane(F::map(hn::Set(one, x[i * stride])))));
    return joined;
  });
}
void fold_columns_f32(Fold fold, const float* x, int64_t rows, int64_t row_stride, int64_t n, double* totals) {
  visit(fold, [&](auto f) { columns<decltype(f)>(x, rows, row_stride, n, totals); });
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(fold_rows_f32);
HWY_EXPORT(fold_run_f32);
HWY_EXPORT(fold_strided_f32);
HWY_EXPORT(fold_columns_f32);

template <>
double fold_run(Fold fold, const float* x, int64_t n, int64_t stride, double total) {
  return stride == 1 ? HWY_DYNAMIC_DISPATCH(fold_run_f32)(fold, x, n, total)
                     : HWY_DYNAMIC_DISPATCH(fold_strided_f32)(fold, x, n, stride, total);
}
template <>
void fold_rows(Fold fold, const float* x, int64_t count, int64_t row_stride, int64_t n, double* totals) {
  HWY_DYNAMIC_DISPATCH(fold_rows_f32)(fold, x, count, row_stride, n, totals);
}
template <>
void fold_columns(Fold fold, const float* x, int64_t rows, int64_t row_stride, int64_t n, double* columns) {
  HWY_DYNAMIC_DISPATCH(fold_columns_f32)(fold, x, rows, row_stride, n, columns);
}

}  // namespace treadle::kernels
#endif
