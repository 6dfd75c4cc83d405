// A channel is copied with a border of zeros. Its columns are split into phases (index modulo the stride). Each tap of a vector of adjacent
// outputs is then one contiguous load at a fixed offset, without bounds checks.
#include "kernels/conv/depthwise.h"

#include <algorithm>
#include <limits>

#include "kernels/scratch_slots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/depthwise.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#ifndef TREADLE_KERNELS_CONV_DEPTHWISE_PLANE_H_
#define TREADLE_KERNELS_CONV_DEPTHWISE_PLANE_H_
namespace treadle::kernels {
inline constexpr int64_t kMaxPhases = 4;  // number of phases whose bounds are precomputed

/// The padded copy of a channel: [depth][height][stride phases][columns].
struct PaddedChannel {
  int64_t depth, height, phases, columns;
  int64_t num_taps;
  int64_t offsets[kMaxDepthwiseTaps];  // offsets from an output's position to each tap

  explicit PaddedChannel(const Window& w) {
    auto reach = [&](int axis) { return (w.out[axis] - 1) * w.stride[axis] + (w.kernel[axis] - 1) * w.dilation[axis] + 1; };
    depth = reach(0);
    height = reach(1);
    phases = w.stride[2];
    columns = w.out[2] + (w.kernel[2] - 1) * w.dilation[2] / w.stride[2] + 1;
    for (int64_t phase = 0; phase < std::min(phases, kMaxPhases); ++phase) inside[phase] = columns_inside(w, phase);
    num_taps = 0;
    for (int64_t kd = 0; kd < w.kernel[0]; ++kd) {
      for (int64_t kh = 0; kh < w.kernel[1]; ++kh) {
        for (int64_t kw = 0; kw < w.kernel[2]; ++kw) {
          const int64_t at = kw * w.dilation[2];
          offsets[num_taps++] = (kd * w.dilation[0] * height + kh * w.dilation[1]) * row() + at % w.stride[2] * columns + at / w.stride[2];
        }
      }
    }
  }
  /// The range of a phase's columns that are inside the input. Column c of the phase is input column c * stride + phase - pad.
  struct Columns {
    int64_t first, last;
  };
  Columns inside[kMaxPhases];
  Columns columns_inside(const Window& w, int64_t phase) const {
    const int64_t shift = phase - w.pad_begin[2], s = phases;
    const int64_t last = w.in[2] > shift ? (w.in[2] - shift + s - 1) / s : 0;
    return {shift >= 0 ? 0 : (-shift + s - 1) / s, last < columns ? last : columns};
  }

  int64_t row() const { return phases * columns; }
  // Vectors at the end of a row also read the next row, or 16 elements after the last; the results in these lanes are not stored.
  int64_t size() const { return depth * height * row() + 16; }
};
}  // namespace treadle::kernels
#endif

#include "kernels/bounds-inl.h"
#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

// Computes a vector of each of kRows output rows, which share the broadcast of a weight. kTaps: number of taps; 0: not a constant.
template <int kRows, int kTaps>
HWY_INLINE void outputs(const PaddedChannel& padded, const float* src, int64_t row_step, const float* weights, float bias, int64_t columns,
                        const float* residual, float low, float high, float* dst, int64_t dst_row) {
  const D d;
  hn::Vec<D> sum[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) sum[r] = hn::Set(d, bias);
  const int64_t taps = kTaps > 0 ? kTaps : padded.num_taps;
#pragma GCC unroll 9
  for (int64_t t = 0; t < taps; ++t) {
    const float* tap = src + padded.offsets[t];
    const auto weight = hn::Set(d, weights[t]);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r] = hn::MulAdd(hn::LoadU(d, tap + r * row_step), weight, sum[r]);
  }
  // The bounds are infinite unless the activation is a clamp. Keeps NaN.
  const auto bottom = hn::Set(d, low), top = hn::Set(d, high);
  const bool full = columns >= static_cast<int64_t>(hn::Lanes(d));
  const FirstLanes first(d, columns);  // `columns` may exceed a vector; then all lanes are stored
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = r * dst_row;
    if (full) {
      if (residual != nullptr) sum[r] = hn::Add(sum[r], hn::LoadU(d, residual + at));
      hn::StoreU(at_most(top, at_least(bottom, sum[r])), d, dst + at);
    } else {
      if (residual != nullptr) sum[r] = hn::Add(sum[r], load_first(d, first, residual + at));
      store_first(at_most(top, at_least(bottom, sum[r])), d, first, dst + at);
    }
  }
}

template <int kTaps>
void plane(const Window& w, const PaddedChannel& padded, const float* padded_src, const float* weights, float bias, const float* residual,
           float low, float high, float* y) {
  constexpr int64_t kRows = 4;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D())), row_step = w.stride[1] * padded.row();
  for (int64_t od = 0; od < w.out[0]; ++od) {
    for (int64_t oh = 0; oh < w.out[1];) {
      const float* src = padded_src + (od * w.stride[0] * padded.height + oh * w.stride[1]) * padded.row();
      const int64_t at = (od * w.out[1] + oh) * w.out[2];
      const bool block = oh + kRows <= w.out[1];
      for (int64_t ow = 0; ow < w.out[2]; ow += lanes) {
        const float* addend = residual != nullptr ? residual + at + ow : nullptr;
        if (block) {
          outputs<kRows, kTaps>(padded, src + ow, row_step, weights, bias, w.out[2] - ow, addend, low, high, y + at + ow, w.out[2]);
        } else {
          outputs<1, kTaps>(padded, src + ow, row_step, weights, bias, w.out[2] - ow, addend, low, high, y + at + ow, w.out[2]);
        }
      }
      oh += block ? kRows : 1;
    }
  }
}

HWY_INLINE void copy_row(const float* src, int64_t n, float* dst) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::LoadU(d, src + i), d, dst + i);
  if (i == n) return;
  if (n >= lanes) {  // the last vector may overlap the previous one
    hn::StoreU(hn::LoadU(d, src + n - lanes), d, dst + n - lanes);
  } else {
    const FirstLanes some(d, n);
    store_first(load_first(d, some, src), d, some, dst);
  }
}

// Copies every second element. The array must be readable up to src[2 n - 2].
HWY_INLINE void copy_even(const float* src, int64_t n, float* dst) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes < n; i += lanes) {
    hn::Vec<D> even, odd;
    hn::LoadInterleaved2(d, src + 2 * i, even, odd);
    hn::StoreU(even, d, dst + i);
  }
  for (; i < n; ++i) dst[i] = src[2 * i];
}

}  // namespace

void depthwise_plane(const Window& w, const PaddedChannel& padded, const float* padded_src, const float* weights, float bias,
                     const float* residual, float low, float high, float* y) {
  if (padded.num_taps == 9) return plane<9>(w, padded, padded_src, weights, bias, residual, low, high, y);
  plane<0>(w, padded, padded_src, weights, bias, residual, low, high, y);
}

// Copies the image into the padded copy. The border was set to zero before the first channel, and stays zero.
void depthwise_copy(const Window& w, const PaddedChannel& padded, const float* x, float* dst) {
  const int64_t s = padded.phases;
  for (int64_t id = 0; id < w.in[0]; ++id) {
    const int64_t depth = id + w.pad_begin[0];
    if (depth >= padded.depth) break;
    for (int64_t ih = 0; ih < w.in[1]; ++ih) {
      const int64_t height = ih + w.pad_begin[1];
      if (height >= padded.height) break;
      const float* src = x + (id * w.in[1] + ih) * w.in[2];
      float* row = dst + (depth * padded.height + height) * padded.row();
      for (int64_t phase = 0; phase < s; ++phase) {
        const PaddedChannel::Columns own = phase < kMaxPhases ? padded.inside[phase] : padded.columns_inside(w, phase);
        const int64_t count = own.last - own.first;
        if (count <= 0) continue;
        float* line = row + phase * padded.columns + own.first;
        const float* from = src + own.first * s + phase - w.pad_begin[2];
        if (s == 1) {
          copy_row(from, count, line);
        } else if (s == 2) {
          copy_even(from, count, line);
        } else {
          for (int64_t c = 0; c < count; ++c) line[c] = from[c * s];
        }
      }
    }
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(depthwise_plane);
HWY_EXPORT(depthwise_copy);

size_t depthwise_slot_bytes(const Window& w) {
  if (w.out_size() == 0) return 0;
  return aligned_bytes<float>(PaddedChannel(w).size());
}

void depthwise(const ConvParams& p, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue, void* scratch,
               int max_threads, ThreadPool* pool) {
  const Window& w = p.window;
  const PaddedChannel padded(w);
  const int64_t in_size = w.in_size(), out_size = w.out_size(), kernel_size = w.kernel_size(), multiplier = p.M / p.group;
  ScratchSlots slots(scratch, depthwise_slot_bytes(w), ScratchSlots::count(max_threads, p.N * p.C));
  const int64_t grain = std::max<int64_t>(1, 100'000 / std::max<int64_t>(1, out_size * kernel_size * multiplier / 4));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool clip = epilogue.activation == Unary::clip, relu = epilogue.activation == Unary::relu;
  const bool clamps = clip || relu || epilogue.activation == Unary::none;
  const float low = clip ? epilogue.a : relu ? 0.0f : -kInfinity, high = clip ? epilogue.b : kInfinity;
  parallel_for(pool, p.N * p.C, grain, [&](int64_t begin, int64_t end) {
    ScratchSlots::Lease lease(slots);
    float* copy = reinterpret_cast<float*>(lease.data());
    std::fill(copy, copy + padded.size(), 0.0f);
    for (int64_t item = begin; item < end; ++item) {
      HWY_DYNAMIC_DISPATCH(depthwise_copy)(w, padded, x + item * in_size, copy);
      for (int64_t j = 0; j < multiplier; ++j) {
        const int64_t m = item % p.C * multiplier + j, offset = (item * multiplier + j) * out_size;
        const float bias = epilogue.bias != nullptr ? epilogue.bias[m] : 0.0f;
        const float* residual = epilogue.residual != nullptr ? epilogue.residual + offset : nullptr;
        HWY_DYNAMIC_DISPATCH(depthwise_plane)(w, padded, copy, weights + m * kernel_size, bias, residual, low, high, y + offset);
        if (!clamps) unary_f32(epilogue.activation, epilogue.a, epilogue.b, y + offset, y + offset, out_size);
      }
    }
  });
}

}  // namespace treadle::kernels
#endif
