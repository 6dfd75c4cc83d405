#include "kernels/normalization/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reduce/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/normalization/softmax.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/elementwise/math-inl.h"
#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Loads a vector of `left` elements; the remaining lanes are set to `other`.
HWY_INLINE V load(D d, const float* x, int64_t left, float other) {
  if (left >= static_cast<int64_t>(hn::Lanes(d))) return hn::LoadU(d, x);
  const FirstLanes first(d, left);
  return hn::IfThenElse(first.mask, load_first(d, first, x), hn::Set(d, other));
}
HWY_INLINE void store(D d, V v, float* y, int64_t left) {
  if (left >= static_cast<int64_t>(hn::Lanes(d))) return hn::StoreU(v, d, y);
  store_first(v, d, FirstLanes(d, left), y);
}

// Returns the maximum, or NaN if either operand is NaN.
HWY_INLINE V max_nan(V a, V b) { return hn::IfThenElse(hn::Eq(a, a), at_least(a, b), a); }

// Computes the softmax of a row that fits one vector.
HWY_INLINE void short_row(int64_t n, const float* x, float* y, bool log_of) {
  const D d;
  const FirstLanes first(d, n);
  const V v = hn::IfThenElse(first.mask, load_first(d, first, x), hn::Set(d, kLowest));
  const V a = hn::Sub(v, hn::MaxOfLanes(d, v));
  const V e = hn::IfThenElseZero(first.mask, exp_of_negative(d, a));
  const V sum = hn::SumOfLanes(d, e);
  store_first(log_of ? hn::Sub(a, log(d, sum)) : hn::Div(e, sum), d, first, y);
}

// Computes the softmax of rows of two elements, one vector of rows at a time. Returns the number of rows processed.
int64_t pairs(int64_t count, const float* x, float* y, bool log_of) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    V a, b;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    const V top = max_nan(a, b);
    a = hn::Sub(a, top), b = hn::Sub(b, top);
    const V ea = exp_of_negative(d, a), eb = exp_of_negative(d, b), sum = hn::Add(ea, eb);
    if (log_of) {
      const V last = log(d, sum);
      hn::StoreInterleaved2(hn::Sub(a, last), hn::Sub(b, last), d, y + 2 * i);
    } else {
      hn::StoreInterleaved2(hn::Div(ea, sum), hn::Div(eb, sum), d, y + 2 * i);
    }
  }
  return i;
}

float largest_of(int64_t n, const float* x) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V top0 = hn::Set(d, kLowest), top1 = top0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    top0 = at_least(top0, hn::LoadU(d, x + i));
    top1 = at_least(top1, hn::LoadU(d, x + i + lanes));
  }
  for (; i < n; i += lanes) top0 = at_least(top0, load(d, x + i, n - i, kLowest));
  // If the maximum loses a NaN, it still reaches the sum of exponentials, and through the sum every element.
  return hn::GetLane(hn::MaxOfLanes(d, at_least(top0, top1)));
}

// Returns the sum of exp(x - top). kKeep: stores the terms in y.
template <bool kKeep>
float sum_of_exp(int64_t n, const float* x, float top, float* y) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V tops = hn::Set(d, top);
  V sum0 = hn::Zero(d), sum1 = sum0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const V a = exp_of_negative(d, hn::Sub(hn::LoadU(d, x + i), tops));
    const V b = exp_of_negative(d, hn::Sub(hn::LoadU(d, x + i + lanes), tops));
    sum0 = hn::Add(sum0, a);
    sum1 = hn::Add(sum1, b);
    if constexpr (kKeep) hn::StoreU(a, d, y + i), hn::StoreU(b, d, y + i + lanes);
  }
  for (; i < n; i += lanes) {
    V e = exp_of_negative(d, hn::Sub(load(d, x + i, n - i, kLowest), tops));
    if (n - i < lanes) e = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(n - i)), e);
    sum0 = hn::Add(sum0, e);
    if constexpr (kKeep) store(d, e, y + i, n - i);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
}

// Computes y = fn(x), a vector at a time.
template <class Fn>
HWY_INLINE void map_row(int64_t n, const float* x, float* y, Fn fn) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(fn(hn::LoadU(d, x + i)), d, y + i);
  if (i < n) store(d, fn(load(d, x + i, n - i, 0.0f)), y + i, n - i);
}

// Runs each step for a block of rows that stays in cache. While one row waits for horizontal operations, logarithms and quotients, the CPU
// works on the block's other rows.
template <bool kLog>
void rows(int64_t count, int64_t n, const float* x, float* y) {
  const D d;
  constexpr int64_t kRows = 16, kElements = 4096;
  HWY_ALIGN float tops[kRows], last[kRows + hn::MaxLanes(D())] = {};
  const int64_t block = std::clamp<int64_t>(kElements / n, 1, kRows);
  for (int64_t first = 0; first < count; first += block) {
    const int64_t some = std::min(block, count - first);
    const float* from = x + first * n;
    float* to = y + first * n;
    for (int64_t r = 0; r < some; ++r) tops[r] = largest_of(n, from + r * n);
    for (int64_t r = 0; r < some; ++r) last[r] = sum_of_exp<!kLog>(n, from + r * n, tops[r], to + r * n);
    for (int64_t r = 0; r < some; r += static_cast<int64_t>(hn::Lanes(d))) {
      const V sum = hn::LoadU(d, last + r);
      hn::StoreU(kLog ? log(d, sum) : hn::Div(hn::Set(d, 1.0f), sum), d, last + r);
    }
    for (int64_t r = 0; r < some; ++r) {
      const V top = hn::Set(d, tops[r]), end = hn::Set(d, last[r]);
      if constexpr (kLog) {
        map_row(n, from + r * n, to + r * n, [&](V v) { return hn::Sub(hn::Sub(v, top), end); });
      } else {
        map_row(n, to + r * n, to + r * n, [&](V v) { return hn::Mul(v, end); });
      }
    }
  }
}

// Processes `width` adjacent columns (at most kMaxSoftmaxColumns) row by row. Rows are far apart and often map to the same cache sets. If
// columns were processed one vector at a time, each would evict lines that the next one needs.
void columns(int64_t n, int64_t inner, int64_t width, const float* x, float* y, bool log_of) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float tops[kMaxSoftmaxColumns], sums[kMaxSoftmaxColumns];
  for (int64_t c = 0; c < width; c += lanes) hn::StoreU(hn::Set(d, kLowest), d, tops + c), hn::StoreU(hn::Zero(d), d, sums + c);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < width; c += lanes)
      hn::StoreU(max_nan(hn::LoadU(d, tops + c), load(d, x + i * inner + c, width - c, 0.0f)), d, tops + c);
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < width; c += lanes) {
      const V a = hn::Sub(load(d, x + i * inner + c, width - c, 0.0f), hn::LoadU(d, tops + c));
      const V e = exp_of_negative(d, a);
      hn::StoreU(hn::Add(hn::LoadU(d, sums + c), e), d, sums + c);
      store(d, log_of ? a : e, y + i * inner + c, width - c);
    }
  }
  for (int64_t c = 0; c < width; c += lanes) {
    const V sum = hn::LoadU(d, sums + c);
    hn::StoreU(log_of ? log(d, sum) : hn::Div(hn::Set(d, 1.0f), sum), d, sums + c);
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < width; c += lanes) {
      const V v = load(d, y + i * inner + c, width - c, 0.0f), last = hn::LoadU(d, sums + c);
      store(d, log_of ? hn::Sub(v, last) : hn::Mul(v, last), y + i * inner + c, width - c);
    }
  }
}

}  // namespace

// Processes the items [begin, end): rows if inner == 1, otherwise blocks of `width` columns.
void softmax_rows(int64_t begin, int64_t end, int64_t length, int64_t inner, int64_t width, const float* x, float* y, bool log_of) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  if (inner == 1) {
    if (length == 2) begin += pairs(end - begin, x + 2 * begin, y + 2 * begin, log_of);
    if (length > lanes) {
      const auto all = log_of ? rows<true> : rows<false>;
      return all(end - begin, length, x + begin * length, y + begin * length);
    }
    for (int64_t i = begin; i < end; ++i) short_row(length, x + i * length, y + i * length, log_of);
    return;
  }
  const int64_t blocks = (inner + width - 1) / width;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i % blocks * width, offset = i / blocks * length * inner + first;
    columns(length, inner, std::min(width, inner - first), x + offset, y + offset, log_of);
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(softmax_rows);

namespace {

void softmax_f32(int64_t outer, int64_t length, int64_t inner, const float* x, float* y, bool log_of, ThreadPool* pool) {
  if (length == 0 || inner == 0) return;
  // Number of columns, in whole cache lines, that stay in L2 together with their results.
  constexpr int64_t kElements = 16384, kLine = 16;
  const int64_t width = inner == 1 ? 1 : std::clamp<int64_t>(kElements / length / kLine * kLine, kLine, kMaxSoftmaxColumns);
  const int64_t blocks = (inner + width - 1) / width;
  const int64_t grain = std::max<int64_t>(1, 8192 / (length * std::min(width, inner)));
  parallel_for(pool, outer * blocks, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(softmax_rows)(begin, end, length, inner, width, x, y, log_of);
  });
}

void softmax_f64(int64_t outer, int64_t length, int64_t inner, const double* x, double* y, bool log_of, ThreadPool* pool) {
  if (length == 0) return;
  parallel_for(pool, outer * inner, std::max<int64_t>(1, 2048 / length), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const int64_t offset = c / inner * length * inner + c % inner;
      double top = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t i = 0; i < length; ++i) top = std::max(top, x[offset + i * inner]);
      for (int64_t i = 0; i < length; ++i) {
        const double v = x[offset + i * inner] - top, e = std::exp(v);
        sum += e;
        y[offset + i * inner] = log_of ? v : e;
      }
      const double last = log_of ? std::log(sum) : 1 / sum;
      for (int64_t i = 0; i < length; ++i) {
        double& v = y[offset + i * inner];
        v = log_of ? v - last : v * last;
      }
    }
  });
}

}  // namespace

template <>
void softmax(int64_t outer, int64_t length, int64_t inner, const float* x, float* y, ThreadPool* pool) {
  softmax_f32(outer, length, inner, x, y, false, pool);
}
template <>
void softmax(int64_t outer, int64_t length, int64_t inner, const double* x, double* y, ThreadPool* pool) {
  softmax_f64(outer, length, inner, x, y, false, pool);
}
template <>
void log_softmax(int64_t outer, int64_t length, int64_t inner, const float* x, float* y, ThreadPool* pool) {
  softmax_f32(outer, length, inner, x, y, true, pool);
}
template <>
void log_softmax(int64_t outer, int64_t length, int64_t inner, const double* x, double* y, ThreadPool* pool) {
  softmax_f64(outer, length, inner, x, y, true, pool);
}

template <typename T>
void hardmax(int64_t outer, int64_t length, int64_t inner, const T* x, T* y, ThreadPool* pool) {
  if (length == 0 || inner == 0) return;
  constexpr int64_t kPlaces = 256;
  if (inner > kPlaces) {  // with so many columns, each is searched on its own
    return parallel_for(pool, outer * inner, std::max<int64_t>(1, 8192 / length), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const int64_t offset = c / inner * length * inner + c % inner;
        int64_t best = 0;
        for (int64_t i = 0; i < length; ++i) {
          const T value = x[offset + i * inner], top = x[offset + best * inner];
          y[offset + i * inner] = 0;
          if (value > top || (value != value && top == top)) best = i;
        }
        y[offset + best * inner] = 1;
      }
    });
  }
  parallel_for(pool, outer, std::max<int64_t>(1, 8192 / (length * inner)), [&](int64_t begin, int64_t end) {
    int64_t places[kPlaces];
    const int64_t block = kPlaces / inner;
    for (int64_t first = begin; first < end; first += block) {
      const int64_t some = std::min(block, end - first);
      arg_extreme(/*largest=*/true, /*select_last=*/false, some, length, inner, x + first * length * inner, places, nullptr);
      T* to = y + first * length * inner;
      std::fill_n(to, some * length * inner, T{0});
      for (int64_t i = 0; i < some * inner; ++i) to[(i / inner * length + places[i]) * inner + i % inner] = 1;
    }
  });
}
template void hardmax(int64_t, int64_t, int64_t, const float*, float*, ThreadPool*);
template void hardmax(int64_t, int64_t, int64_t, const double*, double*, ThreadPool*);

}  // namespace treadle::kernels
#endif
