// A channel is first copied with its zero border, its columns split by their remainder modulo the stride, so that each tap of 16
// neighbouring outputs is one contiguous load without a question asked.
#include "kernels/conv/depthwise.h"

#include <algorithm>
#include <cstring>

#include "kernels/scratch_slots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/depthwise.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#ifndef TREADLE_KERNELS_CONV_DEPTHWISE_PLANE_H_
#define TREADLE_KERNELS_CONV_DEPTHWISE_PLANE_H_
namespace treadle::kernels {
/// The padded copy of a channel: [depth][height][stride phases][columns].
struct PaddedChannel {
  int64_t depth, height, phases, columns;
  explicit PaddedChannel(const Window& w) {
    auto reach = [&](int axis) { return (w.out[axis] - 1) * w.stride[axis] + (w.kernel[axis] - 1) * w.dilation[axis] + 1; };
    depth = reach(0);
    height = reach(1);
    phases = w.stride[2];
    // Vectors of the last outputs read past the row: room for the widest vector.
    columns = w.out[2] + (w.kernel[2] - 1) * w.dilation[2] / w.stride[2] + 1 + 16;
  }
  int64_t row() const { return phases * columns; }
  int64_t size() const { return depth * height * row(); }
};
}  // namespace treadle::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

// kRows output rows of one vector each: the weights are broadcast once for all.
template <int kRows>
HWY_INLINE void outputs(const Window& w, const PaddedChannel& padded, const float* src, const float* weights, float bias, int64_t ow,
                        const float* residual, float* dst) {
  const D d;
  hn::Vec<D> sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = hn::Set(d, bias);
  const int64_t row_step = w.stride[1] * padded.row();
  for (int64_t kd = 0; kd < w.kernel[0]; ++kd) {
    for (int64_t kh = 0; kh < w.kernel[1]; ++kh) {
      const float* line = src + (kd * w.dilation[0] * padded.height + kh * w.dilation[1]) * padded.row() + ow;
      for (int64_t kw = 0; kw < w.kernel[2]; ++kw) {
        const int64_t at = kw * w.dilation[2];
        const float* tap = line + at % w.stride[2] * padded.columns + at / w.stride[2];
        const auto weight = hn::Set(d, *weights++);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sum[r] = hn::MulAdd(hn::LoadU(d, tap + r * row_step), weight, sum[r]);
      }
    }
  }
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), left = w.out[2] - ow;
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = r * w.out[2] + ow;
    if (left >= lanes) {
      if (residual != nullptr) sum[r] = hn::Add(sum[r], hn::LoadU(d, residual + at));
      hn::StoreU(sum[r], d, dst + at);
    } else {
      const auto mask = hn::FirstN(d, static_cast<size_t>(left));
      if (residual != nullptr) sum[r] = hn::Add(sum[r], hn::MaskedLoad(mask, d, residual + at));
      hn::BlendedStore(sum[r], mask, d, dst + at);
    }
  }
}

}  // namespace

void depthwise_plane(const Window& w, const float* padded_src, const float* weights, float bias, const float* residual, float* y) {
  const PaddedChannel padded(w);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  for (int64_t od = 0; od < w.out[0]; ++od) {
    int64_t oh = 0;
    for (; oh < w.out[1];) {
      const float* src = padded_src + (od * w.stride[0] * padded.height + oh * w.stride[1]) * padded.row();
      const int64_t at = (od * w.out[1] + oh) * w.out[2];
      const float* addend = residual != nullptr ? residual + at : nullptr;
      const bool four = oh + 4 <= w.out[1];
      for (int64_t ow = 0; ow < w.out[2]; ow += lanes) {
        if (four) {
          outputs<4>(w, padded, src, weights, bias, ow, addend, y + at);
        } else {
          outputs<1>(w, padded, src, weights, bias, ow, addend, y + at);
        }
      }
      oh += four ? 4 : 1;
    }
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {
namespace {

void copy_padded(const Window& w, const PaddedChannel& padded, const float* x, float* dst) {
  for (int64_t d = 0; d < padded.depth; ++d) {
    for (int64_t h = 0; h < padded.height; ++h, dst += padded.row()) {
      const int64_t id = d - w.pad_begin[0], ih = h - w.pad_begin[1];
      if (id < 0 || id >= w.in[0] || ih < 0 || ih >= w.in[1]) {
        std::fill(dst, dst + padded.row(), 0.0f);
        continue;
      }
      const float* src = x + (id * w.in[1] + ih) * w.in[2];
      for (int64_t phase = 0; phase < padded.phases; ++phase) {
        float* line = dst + phase * padded.columns;
        // Column c of this phase is input column c * stride + phase - pad.
        const int64_t shift = phase - w.pad_begin[2], s = padded.phases;
        const int64_t first = std::clamp<int64_t>(shift >= 0 ? 0 : (-shift + s - 1) / s, 0, padded.columns);
        const int64_t last = std::clamp<int64_t>((w.in[2] - shift + s - 1) / s, first, padded.columns);
        std::fill(line, line + first, 0.0f);
        if (s == 1) {
          std::memcpy(line + first, src + first + shift, static_cast<size_t>(last - first) * sizeof(float));
        } else {
          for (int64_t c = first; c < last; ++c) line[c] = src[c * s + shift];
        }
        std::fill(line + last, line + padded.columns, 0.0f);
      }
    }
  }
}

}  // namespace

HWY_EXPORT(depthwise_plane);

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
  parallel_for(pool, p.N * p.C, grain, [&](int64_t begin, int64_t end) {
    ScratchSlots::Lease lease(slots);
    float* copy = reinterpret_cast<float*>(lease.data());
    for (int64_t item = begin; item < end; ++item) {
      copy_padded(w, padded, x + item * in_size, copy);
      for (int64_t j = 0; j < multiplier; ++j) {
        const int64_t m = item % p.C * multiplier + j, offset = (item * multiplier + j) * out_size;
        float* plane = y + offset;
        HWY_DYNAMIC_DISPATCH(depthwise_plane)
        (w, copy, weights + m * kernel_size, epilogue.bias ? epilogue.bias[m] : 0.0f,
         epilogue.residual ? epilogue.residual + offset : nullptr, plane);
        unary_f32(epilogue.activation, epilogue.a, epilogue.b, plane, plane, out_size);
      }
    }
  });
}

}  // namespace treadle::kernels
#endif
