#include "kernels/conv/depthwise_nhwc.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/depthwise_nhwc.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/bounds-inl.h"
#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

struct Row {
  int64_t C, row, pixel;          // floats from tap to tap, downwards and along
  int64_t step;                   // floats from one output's pixel in x to the next one's
  int64_t y_step;                 // and in y
  int64_t taps_down, taps_along;  // that are inside the image
  int64_t weights_row;            // floats from one row of weights to the next
  int64_t begin, end;             // channels
  int64_t before_wrap, wrap;      // taps down before the ring begins again, and floats back to there
  const float *bias, *residual;
  float low, high;
};

// kOutputs neighbours times kVectors vectors of channels. kCut: the last vector has channels beyond the end. kTaps: along, where
// neighbours' windows are a pixel apart, so that each pixel is read once for all of them; or 0.
template <int kOutputs, int kVectors, bool kCut, int kTaps>
HWY_INLINE void outputs(const Row& r, const float* HWY_RESTRICT x, const float* HWY_RESTRICT w, int64_t c, const float* residual,
                        float* y) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const FirstLanes rest(d, std::min(lanes, r.end - c - (kVectors - 1) * lanes));
  auto load = [&](const float* from, int v) {
    if constexpr (kCut) {
      if (v == kVectors - 1) return load_first(d, rest, from + v * lanes);
    }
    return hn::LoadU(d, from + v * lanes);
  };
#define TREADLE_EACH _Pragma("GCC unroll 8") for (int o = 0; o < kOutputs; ++o) _Pragma("GCC unroll 4") for (int v = 0; v < kVectors; ++v)
  V sum[kOutputs][kVectors];
  TREADLE_EACH sum[o][v] = hn::Zero(d);
  for (int64_t i = 0; i < r.taps_down; ++i) {
    const float* HWY_RESTRICT from = x + i * r.row - (i >= r.before_wrap ? r.wrap : 0) + c;
    const float* HWY_RESTRICT weights = w + i * r.weights_row + c;
    if constexpr (kTaps > 0) {
      V tap[kTaps][kVectors];
#pragma GCC unroll 7
      for (int j = 0; j < kTaps; ++j) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) tap[j][v] = load(weights + j * r.C, v);
      }
#pragma GCC unroll 14
      for (int p = 0; p < kOutputs + kTaps - 1; ++p) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          const V pixel = load(from + p * r.pixel, v);
#pragma GCC unroll 7
          for (int j = 0; j < kTaps; ++j) {
            if (p - j >= 0 && p - j < kOutputs) sum[p - j][v] = hn::MulAdd(tap[j][v], pixel, sum[p - j][v]);
          }
        }
      }
      continue;
    }
    for (int64_t j = 0; j < r.taps_along; ++j) {
      V tap[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) tap[v] = load(weights, v);
      TREADLE_EACH sum[o][v] = hn::MulAdd(tap[v], load(from + o * r.step, v), sum[o][v]);
      from += r.pixel;
      weights += r.C;
    }
  }
  const V low = hn::Set(d, r.low), high = hn::Set(d, r.high);
  TREADLE_EACH {
    V s = sum[o][v];
    if (r.bias != nullptr) s = hn::Add(s, load(r.bias + c, v));
    if (residual != nullptr) s = hn::Add(s, load(residual + o * r.C + c, v));
    s = at_most(high, at_least(low, s));
    float* to = y + o * r.y_step + c + v * lanes;
    if (kCut && v == kVectors - 1) {
      store_first(s, d, rest, to);
    } else {
      hn::StoreU(s, d, to);
    }
  }
#undef TREADLE_EACH
}

template <int kOutputs, int kVectors, int kTaps>
HWY_NOINLINE void all_channels(const Row& r, const float* x, const float* w, const float* residual, float* y) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  int64_t c = r.begin;
  for (; c + kVectors * lanes <= r.end; c += kVectors * lanes) outputs<kOutputs, kVectors, false, kTaps>(r, x, w, c, residual, y);
  for (; c + lanes <= r.end; c += lanes) outputs<kOutputs, 1, false, kTaps>(r, x, w, c, residual, y);
  if (c < r.end) outputs<kOutputs, 1, true, kTaps>(r, x, w, c, residual, y);
}

#if HWY_MAX_BYTES >= 64
constexpr int kNeighbours = 8;
#else
constexpr int kNeighbours = 6;
#endif

template <int kOutputs>
HWY_INLINE void some(int64_t count, const Row& r, const float* x, const float* w, const float* residual, float* y) {
  if constexpr (kOutputs > 1) {
    if (count < kOutputs) return some<kOutputs - 1>(count, r, x, w, residual, y);
  }
  if constexpr (kOutputs >= 5) {
    const int64_t taps = r.pixel == r.step ? r.taps_along : 0;
    if (taps == 3) return all_channels<kOutputs, 1, 3>(r, x, w, residual, y);
    if (taps == 5) return all_channels<kOutputs, 1, 5>(r, x, w, residual, y);
    if (taps == 7) return all_channels<kOutputs, 1, 7>(r, x, w, residual, y);
  }
  all_channels<kOutputs, (kOutputs >= 5 ? 1 : kOutputs >= 3 ? 2 : 4), 0>(r, x, w, residual, y);
}

}  // namespace

void depthwise_row(const Window& w, int64_t C, const RowRing& x, const float* weights, const float* bias, const float* residual, float low,
                   float high, int64_t oh, int64_t begin, int64_t end, float* y, int64_t y_step) {
  const Taps down = taps_inside(w, 1, oh);
  const int64_t row_floats = w.in[2] * x.step, rows = std::max<int64_t>(1, x.count),
                slot = (down.start + down.first * w.dilation[1]) % rows;
  Row r{.C = C,
        .row = w.dilation[1] * row_floats,
        .pixel = w.dilation[2] * x.step,
        .step = w.stride[2] * x.step,
        .y_step = y_step,
        .taps_down = down.last - down.first,
        .taps_along = 0,
        .weights_row = w.kernel[2] * C,
        .begin = begin,
        .end = end,
        .before_wrap = (rows - slot + w.dilation[1] - 1) / w.dilation[1],
        .wrap = rows * row_floats,
        .bias = bias,
        .residual = residual,
        .low = low,
        .high = high};
  const float* row = x.data + slot * row_floats;
  const float* row_weights = weights + down.first * r.weights_row;
  // Outputs whose whole window is inside lie between the first and the last tap's.
  const int64_t first = std::min(outputs_inside(w, 2, 0).first, w.out[2]);
  const int64_t last = std::max(first, outputs_inside(w, 2, w.kernel[2] - 1).last);
  auto run = [&](int64_t ow, int64_t count, const Taps& along) {
    r.taps_along = along.last - along.first;
    const float* res = residual != nullptr ? residual + ow * C : nullptr;
    some<kNeighbours>(count, r, row + (along.start + along.first * w.dilation[2]) * x.step, row_weights + along.first * C, res,
                      y + ow * y_step);
  };
  for (int64_t ow = 0; ow < first; ++ow) run(ow, 1, taps_inside(w, 2, ow));
  const int64_t inside = last - first, blocks = (inside + kNeighbours - 1) / kNeighbours;
  int64_t at = first;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t count = inside / blocks + (block < inside % blocks ? 1 : 0);
    run(at, count, Taps{0, w.kernel[2], at * w.stride[2] - w.pad_begin[2]});
    at += count;
  }
  for (int64_t ow = last; ow < w.out[2]; ++ow) run(ow, 1, taps_inside(w, 2, ow));
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(depthwise_row);

void depthwise_nhwc_row(const Window& window, int64_t C, const RowRing& x, const float* weights, const float* bias, const float* residual,
                        float low, float high, int64_t oh, int64_t begin, int64_t end, float* y, int64_t y_step) {
  HWY_DYNAMIC_DISPATCH(depthwise_row)(window, C, x, weights, bias, residual, low, high, oh, begin, end, y, y_step);
}

}  // namespace treadle::kernels
#endif
