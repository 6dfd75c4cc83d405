#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/reduce/fold.h"
#include "kernels/reduce/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/arg_extreme.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/bounds-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Returns the larger (or smaller) elements. at_least() and at_most() keep a NaN only if it is in b, so a NaN in a is handled separately.
template <bool kLargest, class V>
HWY_INLINE V join(V a, V b) {
  if constexpr (std::is_floating_point_v<hn::TFromV<V>>)
    return hn::IfThenElse(hn::Eq(a, a), kLargest ? at_least(a, b) : at_most(a, b), a);
  else
    return kLargest ? hn::Max(a, b) : hn::Min(a, b);
}

// Finds the extreme (maximum or minimum) of a row, then its index, in two fast passes. The last vector may overlap the previous one, which
// changes neither the extreme nor which of equal elements is first or last. @pre n >= Lanes(d)
template <bool kLargest, typename T>
int64_t place_in_row(const T* x, int64_t n, bool select_last) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), end = n - lanes;
  auto a = hn::LoadU(d, x), b = hn::LoadU(d, x + end);
  int64_t i = lanes;
  for (; i + lanes <= end; i += 2 * lanes) {
    a = join<kLargest>(a, hn::LoadU(d, x + i));
    b = join<kLargest>(b, hn::LoadU(d, x + i + lanes));
  }
  if (i < end) a = join<kLargest>(a, hn::LoadU(d, x + i));
  a = join<kLargest>(a, b);
  const bool has_nan = !hn::AllTrue(d, hn::Eq(a, a));
  const auto extreme = kLargest ? hn::MaxOfLanes(d, a) : hn::MinOfLanes(d, a);
  auto found = [&](int64_t at) {
    const auto v = hn::LoadU(d, x + at);
    return has_nan ? hn::Not(hn::Eq(v, v)) : hn::Eq(v, extreme);  // not Ne(), which would be false for NaN
  };
  if (!select_last) {
    for (i = 0; i < end; i += lanes)
      if (const auto place = hn::FindFirstTrue(d, found(i)); place >= 0) return i + place;
    return end + hn::FindFirstTrue(d, found(end));
  }
  for (i = end; i > 0 && hn::AllFalse(d, found(i)); i -= lanes) {
  }
  const T best = hn::GetLane(extreme);
  for (i = std::max<int64_t>(i, 0) + lanes - 1; has_nan ? x[i] == x[i] : x[i] != best;) --i;
  return i;
}

// Handles adjacent columns: each lane keeps the extreme of its column and the extreme's index.
template <bool kLargest, int kVectors, typename T>
HWY_INLINE void places_of_columns(const T* x, int64_t length, int64_t inner, bool select_last, int64_t* y) {
  const hn::ScalableTag<T> d;
  const hn::RebindToSigned<decltype(d)> di;
  using TI = hn::TFromD<decltype(di)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> best[kVectors];
  hn::Vec<decltype(di)> place[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) best[v] = hn::LoadU(d, x + v * lanes), place[v] = hn::Zero(di);
  for (int64_t i = 1; i < length; ++i) {
    const auto at = hn::Set(di, static_cast<TI>(i));
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const auto candidate = hn::LoadU(d, x + i * inner + v * lanes);
      auto wins = kLargest ? hn::Gt(candidate, best[v]) : hn::Lt(candidate, best[v]);
      if (select_last) wins = hn::Or(wins, hn::Eq(candidate, best[v]));
      if constexpr (std::is_floating_point_v<T>) {
        // The first NaN replaces a number. A later NaN replaces the first one only if the last of equal elements is wanted.
        auto nan = hn::Not(hn::Eq(candidate, candidate));
        if (!select_last) nan = hn::And(nan, hn::Eq(best[v], best[v]));
        wins = hn::Or(wins, nan);
      }
      best[v] = hn::IfThenElse(wins, candidate, best[v]);
      place[v] = hn::IfThenElse(hn::RebindMask(di, wins), at, place[v]);
    }
  }
  HWY_ALIGN TI places[kVectors * hn::MaxLanes(di)];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) hn::Store(place[v], di, places + v * lanes);
  for (int64_t j = 0; j < kVectors * lanes; ++j) y[j] = places[j];
}

template <bool kLargest, typename T>
void places(bool select_last, int64_t count, int64_t length, int64_t inner, const T* x, int64_t* y) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  if (inner == 1) {
    for (int64_t i = 0; i < count; ++i) y[i] = place_in_row<kLargest>(x + i * length, length, select_last);
    return;
  }
  int64_t j = 0;
  for (; j + 4 * lanes <= count; j += 4 * lanes) places_of_columns<kLargest, 4>(x + j, length, inner, select_last, y + j);
  for (; j + lanes <= count; j += lanes) places_of_columns<kLargest, 1>(x + j, length, inner, select_last, y + j);
  if (j < count) places_of_columns<kLargest, 1>(x + count - lanes, length, inner, select_last, y + count - lanes);
}

}  // namespace

#define TREADLE_PLACES(T)                                                                                                     \
  void places_##T(bool largest, bool select_last, int64_t count, int64_t length, int64_t inner, const T* x, int64_t* y) {     \
    largest ? places<true>(select_last, count, length, inner, x, y) : places<false>(select_last, count, length, inner, x, y); \
  }
TREADLE_PLACES(float)
TREADLE_PLACES(double)
TREADLE_PLACES(int32_t)
TREADLE_PLACES(int64_t)
#undef TREADLE_PLACES

// Returns the number of lanes of a vector for elements of this size.
int64_t place_lanes(size_t element_bytes) {
  return static_cast<int64_t>(element_bytes == sizeof(double) ? hn::Lanes(hn::ScalableTag<double>()) : hn::Lanes(hn::ScalableTag<float>()));
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(place_lanes);
HWY_EXPORT(places_float);
HWY_EXPORT(places_double);
HWY_EXPORT(places_int32_t);
HWY_EXPORT(places_int64_t);

namespace {

template <typename T>
bool better(bool largest, bool select_last, T candidate, T best) {
  if (best != best) return select_last && candidate != candidate;
  if (candidate != candidate) return true;
  if (candidate == best) return select_last;
  return largest ? candidate > best : candidate < best;
}

// Handles rows (inner == 1), and columns if they do not fill a vector or have another type.
template <typename T>
void plain_places(bool largest, bool select_last, int64_t count, int64_t length, int64_t inner, const T* x, int64_t* y) {
  using A = FoldChain<T>;
  for (int64_t j = 0; j < count; ++j) {
    const T* column = x + j * (inner == 1 ? length : 1);
    A best = static_cast<A>(column[0]);
    int64_t place = 0;
    for (int64_t i = 1; i < length; ++i) {
      const A candidate = static_cast<A>(column[i * inner]);
      if (better(largest, select_last, candidate, best)) best = candidate, place = i;
    }
    y[j] = place;
  }
}

// Handles rows of bytes: finds the extreme, then the first or last byte equal to it by memchr or memrchr.
template <typename T>
void places_of_bytes(bool largest, bool select_last, int64_t count, int64_t length, const T* x, int64_t* y) {
  for (int64_t j = 0; j < count; ++j, x += length) {
    const auto extreme = static_cast<T>(fold_run<T>(largest ? Fold::max : Fold::min, x, length, 1, x[0]));
    const auto wanted = static_cast<unsigned char>(extreme);
    const void* found = select_last ? memrchr(x, wanted, static_cast<size_t>(length)) : std::memchr(x, wanted, static_cast<size_t>(length));
    y[j] = static_cast<const T*>(found) - x;
  }
}

template <typename T>
constexpr bool has_vectors =
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t>;

template <typename T>
void places(bool largest, bool select_last, int64_t count, int64_t length, int64_t inner, const T* x, int64_t* y) {
  if constexpr (has_vectors<T>) {
    const int64_t lanes = HWY_DYNAMIC_DISPATCH(place_lanes)(sizeof(T));
    if (inner == 1 ? length >= lanes : count >= lanes && length <= INT32_MAX) {
      if constexpr (std::is_same_v<T, float>) return HWY_DYNAMIC_DISPATCH(places_float)(largest, select_last, count, length, inner, x, y);
      if constexpr (std::is_same_v<T, double>) return HWY_DYNAMIC_DISPATCH(places_double)(largest, select_last, count, length, inner, x, y);
      if constexpr (std::is_same_v<T, int32_t>)
        return HWY_DYNAMIC_DISPATCH(places_int32_t)(largest, select_last, count, length, inner, x, y);
      if constexpr (std::is_same_v<T, int64_t>)
        return HWY_DYNAMIC_DISPATCH(places_int64_t)(largest, select_last, count, length, inner, x, y);
    }
  }
  if constexpr (sizeof(T) == 1) {
    if (inner == 1) return places_of_bytes(largest, select_last, count, length, x, y);
  }
  plain_places(largest, select_last, count, length, inner, x, y);
}

}  // namespace

template <typename T>
void arg_extreme(bool largest, bool select_last, int64_t outer, int64_t length, int64_t inner, const T* x, int64_t* y, ThreadPool* pool) {
  constexpr int64_t kGrain = 32 * 1024;
  if (outer * inner == 0) return;
  if (length == 0) throw Error(ErrorCode::invalid_argument, "the largest of no elements has no place");
  parallel_for(pool, outer * inner, std::max<int64_t>(1, kGrain / length), [&](int64_t begin, int64_t end) {
    if (inner == 1) return places(largest, select_last, end - begin, length, inner, x + begin * length, y + begin);
    for (int64_t at = begin; at < end;) {
      const int64_t o = at / inner, column = at % inner, count = std::min(end - at, inner - column);
      places(largest, select_last, count, length, inner, x + o * length * inner + column, y + at);
      at += count;
    }
  });
}

#define TREADLE_INSTANTIATE(T) template void arg_extreme(bool, bool, int64_t, int64_t, int64_t, const T*, int64_t*, ThreadPool*);
TREADLE_FOR_NUMBERS(TREADLE_INSTANTIATE)
#undef TREADLE_INSTANTIATE

}  // namespace treadle::kernels
#endif
