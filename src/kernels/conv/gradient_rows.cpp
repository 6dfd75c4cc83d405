#include "kernels/conv/gradient_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/gradient_rows.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

/// Adds the gradients of kTaps taps, beginning with `tap`. Of the row's outputs, it uses [first, last), which have all these taps inside.
template <int kTaps, int kVectors, bool kCut>
HWY_INLINE void add_taps(const Window& w, int64_t C, const float* HWY_RESTRICT dy, const float* HWY_RESTRICT x, int64_t tap, int64_t first,
                         int64_t last, int64_t c, int64_t channels, float* HWY_RESTRICT dw) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), tap_step = w.dilation[2] * C, step = w.stride[2] * C;
  const FirstLanes rest(d, channels);
  auto load = [&](const float* from, int v) {
    if constexpr (kCut) return load_first(d, rest, from);
    return hn::LoadU(d, from + v * lanes);
  };
  V sum[kTaps][kVectors];
#define TREADLE_EACH _Pragma("GCC unroll 8") for (int t = 0; t < kTaps; ++t) _Pragma("GCC unroll 2") for (int v = 0; v < kVectors; ++v)
  TREADLE_EACH sum[t][v] = load(dw + (tap + t) * C + c, v);
  const float* at = x + (first * w.stride[2] + tap * w.dilation[2] - w.pad_begin[2]) * C + c;
  for (int64_t ow = first; ow < last; ++ow, at += step) {
    V gradient[kVectors];
    _Pragma("GCC unroll 2") for (int v = 0; v < kVectors; ++v) gradient[v] = load(dy + ow * C + c, v);
    TREADLE_EACH sum[t][v] = hn::MulAdd(gradient[v], load(at + t * tap_step, v), sum[t][v]);
  }
  TREADLE_EACH {
    float* to = dw + (tap + t) * C + c + v * lanes;
    if constexpr (kCut) {
      store_first(sum[t][v], d, rest, to);
    } else {
      hn::StoreU(sum[t][v], d, to);
    }
  }
#undef TREADLE_EACH
}

template <int kTaps>
HWY_NOINLINE void all_channels_of(const Window& w, int64_t C, const float* dy, const float* x, int64_t tap, int64_t first, int64_t last,
                                  int64_t begin, int64_t end, float* dw) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  int64_t c = begin;
  for (; c + 2 * lanes <= end; c += 2 * lanes) add_taps<kTaps, 2, false>(w, C, dy, x, tap, first, last, c, lanes, dw);
  for (; c + lanes <= end; c += lanes) add_taps<kTaps, 1, false>(w, C, dy, x, tap, first, last, c, lanes, dw);
  if (c < end) add_taps<kTaps, 1, true>(w, C, dy, x, tap, first, last, c, end - c, dw);
}

}  // namespace

void gather(const float* x, const int64_t* offsets, int64_t count, int64_t columns, int64_t width, float* to) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), whole = columns / lanes * lanes;
  const FirstLanes rest(d, columns - whole);
  for (int64_t i = 0; i < count; ++i, to += width) {
    int64_t k = 0;
    if (offsets[i] != kNoRow) {
      const float* from = x + offsets[i];
      for (; k < whole; k += lanes) hn::StoreU(hn::LoadU(d, from + k), d, to + k);
      if (k < columns) hn::StoreU(load_first(d, rest, from + k), d, to + k), k += lanes;
    }
    for (; k < width; k += lanes) hn::StoreU(hn::Zero(d), d, to + k);
  }
}

// Handles three taps at a time for the outputs that have all three inside the image, and outputs at the borders one by one.
void gradient_row(const Window& w, int64_t C, const float* dy, const float* x, int64_t begin, int64_t end, float* dw) {
  constexpr int64_t kTogether = 3;
  int64_t tap = 0;
  for (; tap + kTogether <= w.kernel[2]; tap += kTogether) {
    const int64_t first = outputs_inside(w, 2, tap).first, last = std::max(first, outputs_inside(w, 2, tap + kTogether - 1).last);
    all_channels_of<kTogether>(w, C, dy, x, tap, first, last, begin, end, dw);
    for (int64_t t = tap; t < tap + kTogether; ++t) {
      const Outputs inside = outputs_inside(w, 2, t);
      if (inside.first < std::min(first, inside.last))
        all_channels_of<1>(w, C, dy, x, t, inside.first, std::min(first, inside.last), begin, end, dw);
      if (std::max(last, inside.first) < inside.last)
        all_channels_of<1>(w, C, dy, x, t, std::max(last, inside.first), inside.last, begin, end, dw);
    }
  }
  for (; tap < w.kernel[2]; ++tap) {
    const Outputs inside = outputs_inside(w, 2, tap);
    if (inside.first < inside.last) all_channels_of<1>(w, C, dy, x, tap, inside.first, inside.last, begin, end, dw);
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(gather);
HWY_EXPORT(gradient_row);

void gather_rows(const float* x, const int64_t* offsets, int64_t count, int64_t columns, int64_t width, float* to) {
  HWY_DYNAMIC_DISPATCH(gather)(x, offsets, count, columns, width, to);
}

void depthwise_gradient_row(const Window& window, int64_t C, const float* dy, const float* x, int64_t begin, int64_t end, float* dw) {
  HWY_DYNAMIC_DISPATCH(gradient_row)(window, C, dy, x, begin, end, dw);
}

}  // namespace treadle::kernels
#endif
