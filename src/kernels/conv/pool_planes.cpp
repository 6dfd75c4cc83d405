// Pools are separable: the rows of a window are first folded (reduced) into one row, and that row is then folded along its length. This
// takes a few operations per input rather than one per tap. For narrow windows inside the input, folded rows stay in registers
// (`narrow_planes`). For others, they are in memory (`pool_planes`). Vectors of `pool_planes` may pass a row's end: the folded row is
// corrected, and the next output row overwrites what is written too far. Only the last rows of all are finished element by element.
#include "kernels/conv/pool_planes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/pool_planes.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "kernels/bounds-inl.h"
#include "kernels/conv/pool.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
struct LargestOf {
  static constexpr bool kAverages = false;
  static constexpr T kIdentity =
      std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  template <class V>
  static HWY_INLINE V join(V a, V b) {
    if constexpr (std::is_floating_point_v<T>)
      return hn::IfThenElse(hn::Eq(a, a), at_least(a, b), a);  // at_least() keeps a NaN only if it is in b
    else
      return hn::Max(a, b);
  }
};
template <typename T>
struct SumOf {
  static constexpr bool kAverages = true;
  static constexpr T kIdentity = 0;
  template <class V>
  static HWY_INLINE V join(V a, V b) {
    return hn::Add(a, b);
  }
};

// Sets folded[i] to the reduction of element i of kRows rows (if 0: `rows` rows) and, if `continues`, of the previous folded[i].
template <class F, int kRows, typename T>
void fold_rows(const T* x, int64_t rows, int64_t pitch, int64_t n, const T* x_end, bool continues, T* folded) {
  const hn::ScalableTag<T> whole;
  const hn::CappedTag<T, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(whole));
  if constexpr (kRows > 0) rows = kRows;
  const T* last = x + (rows - 1) * pitch;
  auto fold = [&](auto d, int64_t i) HWY_ATTR {
    auto total = hn::LoadU(d, x + i);
    if (continues) total = F::join(hn::LoadU(d, folded + i), total);
    for (int64_t r = 1; r < rows; ++r) total = F::join(total, hn::LoadU(d, x + r * pitch + i));
    hn::StoreU(total, d, folded + i);
  };
  int64_t i = 0;
  for (; i < n && last + i + lanes <= x_end; i += lanes) fold(whole, i);
  for (; i < n; ++i) fold(one, i);
}

// Computes the n outputs of a folded row. May also write after them, up to y_end.
template <class F, int kStride, typename T>
void fold_along(const Window& w, const T* folded, int64_t n, const T* divisors, T outer, T* y, const T* y_end) {
  const hn::ScalableTag<T> whole;
  const hn::CappedTag<T, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(whole)), taps = w.kernel[2], dilation = w.dilation[2];
  auto fold = [&](auto d, int64_t i, auto load) HWY_ATTR {
    const T* from = folded + i * w.stride[2];
    auto total = load(from);
    for (int64_t k = 1; k < taps; ++k) total = F::join(total, load(from + k * dilation));
    if constexpr (F::kAverages) total = hn::Div(total, hn::Mul(hn::Set(d, outer), hn::LoadU(d, divisors + i)));
    hn::StoreU(total, d, y + i);
  };
  int64_t i = 0;
  if constexpr (kStride > 0) {
    auto load = [&](const T* from) HWY_ATTR {
#if HWY_TARGET != HWY_SCALAR
      if constexpr (kStride == 2) return hn::ConcatEven(whole, hn::LoadU(whole, from + lanes), hn::LoadU(whole, from));
#endif
      return hn::LoadU(whole, from);
    };
    for (; i < n && y + i + lanes <= y_end; i += lanes) fold(whole, i, load);
  }
  for (; i < n; ++i) fold(one, i, [&](const T* from) HWY_ATTR { return hn::LoadU(one, from); });
}

// The part of an input row that the windows of one output row read: elements [first, last) of `length`; the rest are pads.
struct Span {
  int64_t start, first, last, length;
};

template <class F, typename T>
void fold_window_rows(const Window& w, const Taps& depth, const Taps& height, const Span& span, const T* plane, const T* x_end, T* folded) {
  const int64_t rows = height.last - height.first, pitch = w.dilation[1] * w.in[2];
  const bool empty = rows <= 0 || depth.first >= depth.last;
  const int64_t first = empty ? span.length : span.first, last = empty ? span.length : span.last;
  for (int64_t i = 0; i < first; ++i) folded[i] = F::kIdentity;
  for (int64_t kd = depth.first; kd < depth.last && first < last; ++kd) {
    const int64_t row = (depth.start + kd * w.dilation[0]) * w.in[1] + height.start + height.first * w.dilation[1];
    const T* src = plane + row * w.in[2] + span.start + first;
    const bool continues = kd > depth.first;
    if (rows == 3)
      fold_rows<F, 3>(src, rows, pitch, last - first, x_end, continues, folded + first);
    else if (rows == 2)
      fold_rows<F, 2>(src, rows, pitch, last - first, x_end, continues, folded + first);
    else
      fold_rows<F, 0>(src, rows, pitch, last - first, x_end, continues, folded + first);
  }
  for (int64_t i = last; i < span.length; ++i) folded[i] = F::kIdentity;
}

template <class F, typename T>
void pool_planes(const Window& w, int64_t begin, int64_t end, int64_t planes, bool include_pad, const T* x, T* y) {
  constexpr int64_t kFolded = 4 * kLongestReach, kLanes = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<T>())), kBehind = 3 * kLanes;
  constexpr int64_t kRows = 16;
  if (w.out_size() == 0) return;
  const int64_t s = w.stride[2], reach = (w.kernel[2] - 1) * w.dilation[2] + 1;
  const int64_t piece = std::min(w.out[2], (kFolded - reach) / s + 1);  // number of outputs of a row that are computed together
  // Folds several rows together if they fit the buffer: a row's stores then reach the cache before unaligned loads read the row.
  const int64_t pitch = ((piece - 1) * s + reach + kBehind) / kLanes * kLanes + kLanes;
  const int64_t group = piece < w.out[2] ? 1 : std::clamp<int64_t>(kFolded / pitch, 1, kRows);
  const T *x_end = x + planes * w.in_size(), *y_end = y + end * w.out_size();
  HWY_ALIGN T buffer[kFolded + kBehind + 2 * kLanes], divisors[kFolded + kBehind];
  std::fill(std::begin(buffer), std::end(buffer), F::kIdentity);
  std::fill(std::begin(divisors), std::end(divisors), T{1});
  int64_t divisors_of = -1;
  for (int64_t plane = begin; plane < end; ++plane) {
    for (int64_t od = 0; od < w.out[0]; ++od) {
      const Taps depth = taps_inside(w, 0, od);
      const int64_t deep = F::kAverages ? pool_elements(w, 0, od, include_pad) : 1;
      for (int64_t oh = 0; oh < w.out[1]; oh += group) {
        const int64_t rows = std::min(group, w.out[1] - oh);
        for (int64_t o0 = 0; o0 < w.out[2]; o0 += piece) {
          const int64_t n = std::min(piece, w.out[2] - o0), start = o0 * s - w.pad_begin[2], length = (n - 1) * s + reach;
          if (F::kAverages && divisors_of != o0) {
            for (int64_t i = 0; i < n; ++i) divisors[i] = static_cast<T>(pool_elements(w, 2, o0 + i, include_pad));
            divisors_of = o0;
          }
          const int64_t first = std::clamp<int64_t>(-start, 0, length);
          const Span span{start, first, std::clamp<int64_t>(w.in[2] - start, first, length), length};
          T* folded = buffer + (kLanes - first % kLanes) % kLanes;  // shifted so that the first vector stored is aligned
          for (int64_t r = 0; r < rows; ++r)
            fold_window_rows<F>(w, depth, taps_inside(w, 1, oh + r), span, x + plane * w.in_size(), x_end, folded + r * pitch);
          T* dst = y + plane * w.out_size() + (od * w.out[1] + oh) * w.out[2] + o0;
          for (int64_t r = 0; r < rows; ++r, dst += w.out[2]) {
            const T outer = F::kAverages ? static_cast<T>(deep * pool_elements(w, 1, oh + r, include_pad)) : T{1};
            if (s == 1) {
              fold_along<F, 1>(w, folded + r * pitch, n, divisors, outer, dst, y_end);
#if HWY_TARGET != HWY_SCALAR
            } else if (s == 2) {
              fold_along<F, 2>(w, folded + r * pitch, n, divisors, outer, dst, y_end);
#endif
            } else {
              fold_along<F, 0>(w, folded + r * pitch, n, divisors, outer, dst, y_end);
            }
          }
        }
      }
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
// The plan of an output row if windows have 2 or 3 taps along it, and stride 2. The input rows are reduced in registers; even and odd lanes
// of the result are different taps, so each input is loaded once. Outputs whose windows reach into the pads are computed one by one.
struct NarrowRow {
  struct Edge {
    int64_t column, count;  // first column of the output, and divisor of its mean
    Taps taps;
  };
  Outputs inside;
  Edge edges[4];
  int64_t num_edges = 0;

  /// @returns true if windows are of this kind, each window reads a row of the input, and a row of outputs fills a vector of `lanes` lanes
  bool plan(const Window& w, int64_t lanes, bool include_pad) {
    if (w.rank > 2 || w.kernel[2] < 2 || w.kernel[2] > 3 || w.dilation[2] > 1 || w.stride[2] != 2) return false;
    const int64_t room = w.in[2] + w.pad_begin[2] - w.kernel[2];
    inside.last = room < 0 ? 0 : std::min(w.out[2], room / 2 + 1);
    inside.first = (w.pad_begin[2] + 1) / 2;
    const int64_t vectors = inside.last - inside.first;
    if (vectors < lanes || w.out[2] - vectors > static_cast<int64_t>(std::size(edges))) return false;
    for (int64_t oh = 0; oh < w.out[1]; ++oh) {
      const Taps height = taps_inside(w, 1, oh);
      if (height.first >= height.last) return false;
    }
    for (int64_t o = 0; o < w.out[2]; ++o) {
      if (o == inside.first) o = inside.last;
      if (o < w.out[2]) edges[num_edges++] = {o, pool_elements(w, 2, o, include_pad), taps_inside(w, 2, o)};
    }
    return true;
  }
};

// Reduces column x of `rows` rows, and broadcasts the result to all lanes.
template <class F, class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> join_column(D d, const T* x, int64_t rows, int64_t pitch) {
  const hn::CappedTag<T, 1> one;
  auto total = hn::LoadU(one, x);
  for (int64_t r = 1; r < rows; ++r) total = F::join(total, hn::LoadU(one, x + r * pitch));
  return hn::Set(d, hn::GetLane(total));
}

// Computes n outputs (at least one vector). The first window begins at x; windows have kRows rows (if 0: `rows` rows).
template <class F, int kTaps, int kRows, typename T>
void pool_row(const T* x, int64_t rows, int64_t pitch, int64_t n, T divisor, T* y) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if constexpr (kRows > 0) rows = kRows;
  auto columns = [&](const T* from) HWY_ATTR {
    auto total = hn::LoadU(d, from);
    for (int64_t r = 1; r < rows; ++r) total = F::join(total, hn::LoadU(d, from + r * pitch));
    return total;
  };
  const hn::RebindToSigned<decltype(d)> indices;
  using Index = hn::TFromD<decltype(indices)>;
  const auto rotated = hn::IndicesFromVec(d, hn::And(hn::Iota(indices, 1), hn::Set(indices, static_cast<Index>(lanes - 1))));
  const auto but_last = hn::FirstN(d, static_cast<size_t>(lanes - 1));
  for (int64_t i = 0;; i = std::min(i + lanes, n - lanes)) {  // the last vector may overlap the previous one
    const T* from = x + 2 * i;
    const auto low = columns(from), high = columns(from + lanes);
    const auto even = hn::ConcatEven(d, high, low);
    auto total = F::join(even, hn::ConcatOdd(d, high, low));
    if constexpr (kTaps == 3) {
      const auto behind = join_column<F>(d, from + 2 * lanes, rows, pitch);
      total = F::join(total, hn::IfThenElse(but_last, hn::TableLookupLanes(even, rotated), behind));
    }
    if constexpr (F::kAverages) total = hn::Div(total, hn::Set(d, divisor));
    hn::StoreU(total, d, y + i);
    if (i == n - lanes) return;
  }
}

template <class F, int kTaps, typename T>
void narrow_planes(const Window& w, const NarrowRow& row, int64_t begin, int64_t end, bool include_pad, const T* x, T* y) {
  const hn::CappedTag<T, 1> one;
  const int64_t pitch = w.dilation[1] * w.in[2], n = row.inside.last - row.inside.first;
  for (int64_t plane = begin; plane < end; ++plane) {
    for (int64_t oh = 0; oh < w.out[1]; ++oh, y += w.out[2]) {
      const Taps height = taps_inside(w, 1, oh);
      const int64_t rows = height.last - height.first, counted = F::kAverages ? pool_elements(w, 1, oh, include_pad) : 1;
      const T* src = x + plane * w.in_size() + (height.start + height.first * w.dilation[1]) * w.in[2];
      for (int64_t e = 0; e < row.num_edges; ++e) {
        const NarrowRow::Edge& edge = row.edges[e];
        auto total = hn::Set(one, F::kIdentity);
        for (int64_t k = edge.taps.first; k < edge.taps.last; ++k)
          total = F::join(total, join_column<F>(one, src + edge.taps.start + k, rows, pitch));
        if constexpr (F::kAverages) total = hn::Div(total, hn::Set(one, static_cast<T>(counted * edge.count)));
        hn::StoreU(total, one, y + edge.column);
      }
      const T* from = src + 2 * row.inside.first - w.pad_begin[2];
      T* dst = y + row.inside.first;
      const T divisor = static_cast<T>(counted * kTaps);
      if (rows == 3)
        pool_row<F, kTaps, 3>(from, rows, pitch, n, divisor, dst);
      else if (rows == 2)
        pool_row<F, kTaps, 2>(from, rows, pitch, n, divisor, dst);
      else
        pool_row<F, kTaps, 0>(from, rows, pitch, n, divisor, dst);
    }
  }
}
#endif

template <class F, typename T>
void planes_of(const Window& w, int64_t begin, int64_t end, int64_t planes, bool include_pad, const T* x, T* y) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_floating_point_v<T>) {
    NarrowRow row;
    if (row.plan(w, static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>())), include_pad)) {
      T* dst = y + begin * w.out_size();
      return w.kernel[2] == 2 ? narrow_planes<F, 2>(w, row, begin, end, include_pad, x, dst)
                              : narrow_planes<F, 3>(w, row, begin, end, include_pad, x, dst);
    }
  }
#endif
  pool_planes<F>(w, begin, end, planes, include_pad, x, y);
}

}  // namespace

#define TREADLE_LARGEST(T)                                                                             \
  void max_planes_##T(const Window& w, int64_t begin, int64_t end, int64_t planes, const T* x, T* y) { \
    planes_of<LargestOf<T>>(w, begin, end, planes, false, x, y);                                       \
  }
#define TREADLE_AVERAGE(T)                                                                                                   \
  void average_planes_##T(const Window& w, int64_t begin, int64_t end, int64_t planes, bool include_pad, const T* x, T* y) { \
    planes_of<SumOf<T>>(w, begin, end, planes, include_pad, x, y);                                                           \
  }
TREADLE_LARGEST(float)
TREADLE_LARGEST(double)
TREADLE_LARGEST(int8_t)
TREADLE_LARGEST(uint8_t)
TREADLE_AVERAGE(float)
TREADLE_AVERAGE(double)
#undef TREADLE_LARGEST
#undef TREADLE_AVERAGE

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

#define TREADLE_LARGEST(T)                                                                         \
  HWY_EXPORT(max_planes_##T);                                                                      \
  template <>                                                                                      \
  void max_planes(const Window& w, int64_t begin, int64_t end, int64_t planes, const T* x, T* y) { \
    HWY_DYNAMIC_DISPATCH(max_planes_##T)(w, begin, end, planes, x, y);                             \
  }
#define TREADLE_AVERAGE(T)                                                                                               \
  HWY_EXPORT(average_planes_##T);                                                                                        \
  template <>                                                                                                            \
  void average_planes(const Window& w, int64_t begin, int64_t end, int64_t planes, bool include_pad, const T* x, T* y) { \
    HWY_DYNAMIC_DISPATCH(average_planes_##T)(w, begin, end, planes, include_pad, x, y);                                  \
  }
TREADLE_LARGEST(float)
TREADLE_LARGEST(double)
TREADLE_LARGEST(int8_t)
TREADLE_LARGEST(uint8_t)
TREADLE_AVERAGE(float)
TREADLE_AVERAGE(double)
#undef TREADLE_LARGEST
#undef TREADLE_AVERAGE

}  // namespace treadle::kernels
#endif
