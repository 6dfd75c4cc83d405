// Sums a plane row by row. Outputs of a row whose positions are equal modulo the stride are called a phase. An output phase receives
// contiguous columns, so vectors add them up; then the phases are interleaved.
#include "kernels/conv/col2im.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/col2im.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
constexpr int64_t kPiece = 1024;   // number of sums of one phase that are computed at a time
constexpr int64_t kMostRows = 64;  // up to this many rows of columns per row of the plane, sums are kept in registers

// A number as quotient and nonnegative remainder by the stride. Two such numbers can be added without a division.
struct Places {
  int64_t quotient, rest;
  Places(int64_t number, int64_t stride) : quotient(number / stride), rest(number % stride) {
    if (rest < 0) --quotient, rest += stride;
  }
  HWY_INLINE void advance(const Places& step, int64_t stride) {
    quotient += step.quotient, rest += step.rest;
    if (rest >= stride) ++quotient, rest -= stride;
  }
};

// Adds x[i] to sums[i]. `sums` has space for one more vector after its end.
HWY_INLINE void add_run(const float* x, int64_t n, float* sums) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Add(hn::LoadU(d, sums + i), hn::LoadU(d, x + i)), d, sums + i);
#if HWY_TARGET <= HWY_AVX2
  if (i < n) hn::StoreU(hn::Add(hn::LoadU(d, sums + i), load_first(d, FirstLanes(d, n - i), x + i)), d, sums + i);
#else
  for (; i < n; ++i) sums[i] += x[i];
#endif
}

// Sets all sums to `value`; may also write to the space after their end.
HWY_INLINE void start_sums(float value, int64_t n, float* sums) {
  const D d;
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) hn::StoreU(hn::Set(d, value), d, sums + i);
}

// For each kw, adds one row of columns to the sums of the phases [phase, phase + phases), at positions [begin, begin + n).
HWY_INLINE void add_taps(const Window& w, const float* columns, int64_t phase, int64_t phases, int64_t begin, int64_t n,
                         float (*sums)[kPiece + hn::MaxLanes(D())]) {
  const int64_t stride = w.stride[2];
  const Places step(w.dilation[2], stride);
  Places tap(-w.pad_begin[2], stride);
  for (int64_t kw = 0; kw < w.kernel[2]; ++kw, columns += w.out_size(), tap.advance(step, stride)) {
    const int64_t to = tap.rest - phase;
    if (to < 0 || to >= phases) continue;
    const int64_t first = std::max<int64_t>(0, begin - tap.quotient), last = std::min(w.out[2], begin + n - tap.quotient);
    if (first < last) add_run(columns + first, last - first, sums[to] + (first + tap.quotient - begin));
  }
}

// Sets dst[i * stride + p] = sums[p][i], but writes nothing at or after `end`.
HWY_INLINE void put_phases(float (*sums)[kPiece + hn::MaxLanes(D())], int64_t phases, int64_t stride, int64_t n, float* dst,
                           const float* end) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (phases == 2) {
    for (; dst + 2 * (i + lanes) <= end; i += lanes)
      hn::StoreInterleaved2(hn::LoadU(d, sums[0] + i), hn::LoadU(d, sums[1] + i), d, dst + 2 * i);
  }
#endif
  if (stride == 1) {
    std::copy_n(sums[0], n, dst);
    return;
  }
  for (; i < n; ++i)
    for (int64_t p = 0; p < phases && dst + i * stride + p < end; ++p) dst[i * stride + p] = sums[p][i];
}

// For rows with stride 1: keeps a vector of sums in a register while all taps are added. The lanes to which a tap contributes are the same
// in every row, so they are computed once.
struct RowTaps {
  static constexpr int64_t kMost = 256;
  struct Tap {
    int64_t offset;       // offset of the vector's first element from the start of the row of columns for kw = 0
    int64_t first, last;  // lanes [first, last) to which the tap contributes
  };
  Tap taps[kMost];
  int32_t begins[kMost + 1];  // index of the first tap of each vector
  int64_t vectors = 0;

  // Returns false if there are too many taps or masked loads are slow. The taps of a vector are ordered by kw, so that the terms are added
  // in the same order as without registers.
  bool make(const Window& w) {
    const auto lanes = static_cast<int64_t>(hn::Lanes(D()));
    vectors = (w.in[2] + lanes - 1) / lanes;
    if (!kMasksMemory || w.stride[2] != 1 || vectors > kMost || vectors * w.kernel[2] > kMost) return false;
    int32_t count = 0;
    for (int64_t v = 0; v < vectors; ++v) {
      begins[v] = count;
      for (int64_t kw = 0; kw < w.kernel[2]; ++kw) {
        const int64_t start = v * lanes - (kw * w.dilation[2] - w.pad_begin[2]);
        const int64_t first = std::max<int64_t>(0, -start), last = std::min(lanes, w.out[2] - start);
        if (first < last) taps[count++] = {kw * w.out_size() + start, first, last};
      }
    }
    begins[vectors] = count;
    return true;
  }

  // Returns `sums` plus what one row of columns of each kw contributes to this vector.
  HWY_INLINE hn::Vec<D> add(int64_t vector, const float* rows, hn::Vec<D> sums) const {
    const D d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (int32_t t = begins[vector]; t < begins[vector + 1]; ++t) {
      const Tap& tap = taps[t];
      const float* x = rows + tap.offset;
      const bool is_whole = tap.last - tap.first == lanes;
      sums = hn::Add(sums, is_whole ? hn::LoadU(d, x) : load_between(d, tap.first, tap.last, x));
    }
    return sums;
  }
};

// Returns true if windows have two taps along a row without gaps or overlap, as when an image is doubled: each output has just one tap.
bool tiles_pairs(const Window& w) {
  for (int axis = 0; axis < 3; ++axis)
    if (w.kernel[axis] > w.stride[axis] || (w.dilation[axis] != 1 && w.kernel[axis] != 1)) return false;
  return w.kernel[2] == 2 && w.stride[2] == 2 && w.pad_begin[2] == 0 && w.in[2] == 2 * w.out[2];
}

// Sets dst[2 * i] = even[i] + bias and dst[2 * i + 1] = odd[i] + bias.
HWY_INLINE void put_pairs(const float* even, const float* odd, float bias, int64_t n, float* dst) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto all = hn::Set(d, bias);
  for (; i + lanes <= n; i += lanes)
    hn::StoreInterleaved2(hn::Add(hn::LoadU(d, even + i), all), hn::Add(hn::LoadU(d, odd + i), all), d, dst + 2 * i);
#endif
  for (; i < n; ++i) dst[2 * i] = even[i] + bias, dst[2 * i + 1] = odd[i] + bias;
}

// Calls fn(row of columns for kw = 0) for each kd and kh that contributes to the plane's row at position `depth`, `height`.
template <typename Fn>
HWY_INLINE void for_each_row(const Window& w, const float* columns, const Places& depth, const Places& height, Fn fn) {
  const Places depth_step(w.dilation[0], w.stride[0]), height_step(w.dilation[1], w.stride[1]);
  Places kd_place(0, 1);
  for (int64_t kd = 0; kd < w.kernel[0]; ++kd, kd_place.advance(depth_step, w.stride[0])) {
    const int64_t od = depth.quotient - kd_place.quotient;
    if (depth.rest != kd_place.rest || od < 0 || od >= w.out[0]) continue;
    Places kh_place(0, 1);
    for (int64_t kh = 0; kh < w.kernel[1]; ++kh, kh_place.advance(height_step, w.stride[1])) {
      const int64_t oh = height.quotient - kh_place.quotient;
      if (height.rest != kh_place.rest || oh < 0 || oh >= w.out[1]) continue;
      fn(columns + (kd * w.kernel[1] + kh) * w.kernel[2] * w.out_size() + (od * w.out[1] + oh) * w.out[2]);
    }
  }
}

// Sets the n elements of dst to the bias plus the contributions of all taps.
HWY_INLINE void put_row(const RowTaps& taps, const float* const* rows, int64_t num_rows, float bias, int64_t n, float* dst) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t v = 0; v < taps.vectors; ++v) {
    auto sums = hn::Set(d, bias);
    for (int64_t r = 0; r < num_rows; ++r) sums = taps.add(v, rows[r], sums);
    const int64_t left = n - v * lanes;
    if (left >= lanes)
      hn::StoreU(sums, d, dst + v * lanes);
    else
      store_first(sums, d, FirstLanes(d, left), dst + v * lanes);
  }
}

}  // namespace

void sum_columns(const Window& w, const float* columns, float bias, float* plane) {
  const int64_t stride = w.stride[2], phases = stride == 2 ? 2 : 1;
  const Places one_down(1, w.stride[1]);
  const bool pairs = tiles_pairs(w);
  RowTaps row_taps;
  const bool in_registers = row_taps.make(w) && w.kernel[0] * w.kernel[1] <= kMostRows;
  HWY_ALIGN float sums[2][kPiece + hn::MaxLanes(D())];
  for (int64_t id = 0; id < w.in[0]; ++id) {
    const Places depth(id + w.pad_begin[0], w.stride[0]);
    Places height(w.pad_begin[1], w.stride[1]);
    for (int64_t ih = 0; ih < w.in[1]; ++ih, height.advance(one_down, w.stride[1]), plane += w.in[2]) {
      if (pairs) {
        const int64_t od = depth.quotient, oh = height.quotient, kd = depth.rest, kh = height.rest;
        const bool taken = kd < w.kernel[0] && kh < w.kernel[1] && od >= 0 && od < w.out[0] && oh >= 0 && oh < w.out[1];
        const float* rows = columns + (kd * w.kernel[1] + kh) * 2 * w.out_size() + (od * w.out[1] + oh) * w.out[2];
        if (taken)
          put_pairs(rows, rows + w.out_size(), bias, w.out[2], plane);
        else
          std::fill_n(plane, w.in[2], bias);
        continue;
      }
      if (in_registers) {
        const float* rows[kMostRows];
        int64_t num_rows = 0;
        for_each_row(w, columns, depth, height, [&](const float* row) { rows[num_rows++] = row; });
        put_row(row_taps, rows, num_rows, bias, w.in[2], plane);
        continue;
      }
      for (int64_t phase = 0; phase < std::min(stride, w.in[2]); phase += phases) {
        const int64_t places = (w.in[2] - phase + stride - 1) / stride;
        for (int64_t begin = 0; begin < places; begin += kPiece) {
          const int64_t n = std::min(kPiece, places - begin);
          for (int64_t p = 0; p < phases; ++p) start_sums(bias, n, sums[p]);
          for_each_row(w, columns, depth, height, [&](const float* rows) { add_taps(w, rows, phase, phases, begin, n, sums); });
          float* dst = plane + phase + begin * stride;
          put_phases(sums, phases, stride, n, dst, std::min(plane + w.in[2], dst + n * stride));
        }
      }
    }
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(sum_columns);

void col2im(const Window& window, const float* columns, float bias, float* plane) {
  HWY_DYNAMIC_DISPATCH(sum_columns)(window, columns, bias, plane);
}

}  // namespace treadle::kernels
#endif
