#include "kernels/conv/depthwise_nhwc.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/depthwise_nhwc.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "kernels/bounds-inl.h"
#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

struct Row {
  int64_t C, row, pixel;          // strides from tap to tap in floats: row (vertical) and pixel (horizontal)
  int64_t step;                   // stride in x from the pixel of one output to that of the next
  int64_t y_step;                 // stride in y from one output to the next
  int64_t taps_down, taps_along;  // numbers of taps inside the image, vertically and horizontally
  int64_t start;                  // number of floats from the row's first pixel to the first tap's; negative before the image
  Taps inside;                    // range of pixels inside the image, among those that kOutputs windows cover; 0 is the first tap
  int64_t weights_row;            // row stride of the weights in floats
  int64_t begin, end;             // the range of channels
  int64_t before_wrap, wrap;      // number of vertical taps before the ring's end, and number of floats to go back after them
  const float *bias, *residual;
  float low, high;
  bool clamped;
};

// Computes kOutputs adjacent outputs by kVectors vectors of channels. kCut: the last vector is partial. kTaps: number of horizontal taps if
// adjacent windows are one tap apart and share loads of pixels; otherwise 0. kBorder: some pixels are outside the image.
template <int kOutputs, int kVectors, bool kCut, int kTaps, bool kBorder>
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
  const int64_t pixel = r.pixel, first_pixel = r.inside.first, last_pixel = r.inside.last;
  V sum[kOutputs][kVectors];
  TREADLE_EACH sum[o][v] = o > 0 ? sum[0][v] : r.bias != nullptr ? load(r.bias + c, v) : hn::Zero(d);
  for (int64_t i = 0; i < r.taps_down; ++i) {
    int64_t at = i * r.row - (i >= r.before_wrap ? r.wrap : 0) + c + r.start;
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
        const float* HWY_RESTRICT from = x + at;
        at += pixel;
        if (kBorder && (p < first_pixel || p >= last_pixel)) continue;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          const V value = load(from, v);
#pragma GCC unroll 7
          for (int j = 0; j < kTaps; ++j) {
            if (p - j >= 0 && p - j < kOutputs) sum[p - j][v] = hn::MulAdd(tap[j][v], value, sum[p - j][v]);
          }
        }
      }
      continue;
    }
    for (int64_t j = 0; j < r.taps_along; ++j) {
      V tap[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) tap[v] = load(weights, v);
      TREADLE_EACH sum[o][v] = hn::MulAdd(tap[v], load(x + (at + o * r.step), v), sum[o][v]);
      at += pixel;
      weights += r.C;
    }
  }
  if (residual != nullptr) TREADLE_EACH sum[o][v] = hn::Add(sum[o][v], load(residual + o * r.C + c, v));
  if (r.clamped) {
    const V low = hn::Set(d, r.low), high = hn::Set(d, r.high);
    TREADLE_EACH sum[o][v] = at_most(high, at_least(low, sum[o][v]));
  }
  const int64_t y_step = r.y_step;  // a local copy, as the compiler must assume that stores change r
  TREADLE_EACH {
    float* to = y + o * y_step + c + v * lanes;
    if (kCut && v == kVectors - 1) {
      store_first(sum[o][v], d, rest, to);
    } else {
      hn::StoreU(sum[o][v], d, to);
    }
  }
#undef TREADLE_EACH
}

template <int kOutputs, int kVectors, int kTaps, bool kBorder>
HWY_NOINLINE void all_channels(const Row& r, const float* x, const float* w, const float* residual, float* y) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  int64_t c = r.begin;
  for (; c + kVectors * lanes <= r.end; c += kVectors * lanes) outputs<kOutputs, kVectors, false, kTaps, kBorder>(r, x, w, c, residual, y);
  for (; c + lanes <= r.end; c += lanes) outputs<kOutputs, 1, false, kTaps, kBorder>(r, x, w, c, residual, y);
  if (c < r.end) outputs<kOutputs, 1, true, kTaps, kBorder>(r, x, w, c, residual, y);
}

#if HWY_MAX_BYTES >= 64
constexpr int kNeighbors = 8;
#else
constexpr int kNeighbors = 6;
#endif
constexpr int kFewestNeighbors = 3;  // minimum number of outputs for which sharing pixels pays

// Computes adjacent outputs whose windows are inside the image. Each output reads its pixels separately.
template <int kOutputs>
HWY_INLINE void apart(int64_t count, const Row& r, const float* x, const float* w, const float* residual, float* y) {
  if constexpr (kOutputs > 1) {
    if (count < kOutputs) return apart<kOutputs - 1>(count, r, x, w, residual, y);
  }
  all_channels<kOutputs, (kOutputs >= 5 ? 1 : kOutputs >= 3 ? 2 : 4), 0, false>(r, x, w, residual, y);
}

// Computes adjacent outputs whose windows share pixels; some pixels may be outside the image.
template <int kTaps, int kOutputs>
HWY_INLINE void shared(int64_t count, const Row& r, const float* x, const float* w, const float* residual, float* y) {
  if constexpr (kOutputs > kFewestNeighbors) {
    if (count < kOutputs) return shared<kTaps, kOutputs - 1>(count, r, x, w, residual, y);
  }
  if (r.inside.last - r.inside.first == kOutputs + kTaps - 1) return all_channels<kOutputs, 1, kTaps, false>(r, x, w, residual, y);
  all_channels<kOutputs, 1, kTaps, true>(r, x, w, residual, y);
}

using Neighbors = decltype(&shared<3, kNeighbors>);
Neighbors shared_by(int64_t taps) {
  switch (taps) {
    case 3: return shared<3, kNeighbors>;
    case 5: return shared<5, kNeighbors>;
    case 7: return shared<7, kNeighbors>;
    default: return nullptr;
  }
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
        .start = 0,
        .inside = {},
        .weights_row = w.kernel[2] * C,
        .begin = begin,
        .end = end,
        .before_wrap = (rows - slot + w.dilation[1] - 1) / w.dilation[1],
        .wrap = rows * row_floats,
        .bias = bias,
        .residual = residual,
        .low = low,
        .high = high,
        .clamped = low > -std::numeric_limits<float>::infinity() || high < std::numeric_limits<float>::infinity()};
  const float* row = x.data + slot * row_floats;
  const float* row_weights = weights + down.first * r.weights_row;
  // Computes `count` outputs, beginning with output ow, with the horizontal taps [along.first, along.last).
  auto run = [&](Neighbors neighbors, int64_t ow, int64_t count, const Taps& along) {
    r.taps_along = along.last - along.first;
    r.start = (along.start + along.first * w.dilation[2]) * x.step;
    const float* res = residual != nullptr ? residual + ow * C : nullptr;
    neighbors(count, r, row, row_weights + along.first * C, res, y + ow * y_step);
  };
  auto run_blocks = [&](Neighbors neighbors, int64_t first, int64_t last) {
    const int64_t blocks = (last - first + kNeighbors - 1) / kNeighbors;
    for (int64_t block = 0, at = first; block < blocks; ++block) {
      const int64_t count = (last - first) / blocks + (block < (last - first) % blocks ? 1 : 0), start = at * w.stride[2] - w.pad_begin[2];
      r.inside = places_inside(start, w.dilation[2], count + w.kernel[2] - 1, w.in[2]);
      run(neighbors, at, count, Taps{0, w.kernel[2], start});
      at += count;
    }
  };
  if (const Neighbors neighbors = shared_by(w.kernel[2]);
      neighbors != nullptr && w.stride[2] == w.dilation[2] && w.out[2] >= kFewestNeighbors)
    return run_blocks(neighbors, 0, w.out[2]);
  // The outputs whose whole window is inside the image: both the first and the last tap are inside.
  const int64_t first = std::min(outputs_inside(w, 2, 0).first, w.out[2]);
  const int64_t last = std::max(first, outputs_inside(w, 2, w.kernel[2] - 1).last);
  for (int64_t ow = 0; ow < first; ++ow) run(apart<1>, ow, 1, taps_inside(w, 2, ow));
  run_blocks(apart<kNeighbors>, first, last);
  for (int64_t ow = last; ow < w.out[2]; ++ow) run(apart<1>, ow, 1, taps_inside(w, 2, ow));
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {
namespace {
constexpr int64_t kLargeWindow = 25;        // windows with at least this many taps span rows that exceed L1 if all channels are used
constexpr int64_t kBlockFloats = 8 * 1024;  // number of floats of these rows and the weights that stay in L1
constexpr int64_t kFewestChannels = 32, kMostChannels = 256;
}  // namespace

HWY_EXPORT(depthwise_row);

int64_t depthwise_nhwc_block(const Window& w) {
  if (w.kernel_size() < kLargeWindow) return kMostChannels;
  const int64_t rows = std::min(w.in[1], (w.kernel[1] - 1) * w.dilation[1] + 1);
  return std::clamp(kBlockFloats / (w.in[2] * rows + w.kernel_size()), kFewestChannels, kMostChannels) / kFewestChannels * kFewestChannels;
}

void depthwise_nhwc_row(const Window& window, int64_t C, const RowRing& x, const float* weights, const float* bias, const float* residual,
                        float low, float high, int64_t oh, int64_t begin, int64_t end, float* y, int64_t y_step) {
  HWY_DYNAMIC_DISPATCH(depthwise_row)(window, C, x, weights, bias, residual, low, high, oh, begin, end, y, y_step);
}

}  // namespace treadle::kernels
#endif
