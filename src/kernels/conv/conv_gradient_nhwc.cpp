#include "kernels/conv/conv_gradient_nhwc.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "core/trace/kernel_phases.h"
#include "kernels/conv/conv_in_planes.h"
#include "kernels/conv/nhwc_bf16.h"
#include "kernels/conv/winograd.h"
#include "kernels/movement/transpose_plane.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

/// A phase of one axis: the inputs whose index plus the pad is `rest` modulo the stride. Their gradient is a convolution of dy with the
/// taps first_tap, first_tap + tap_step ..., in reverse order.
struct AxisPhase {
  int64_t first = 0, count = 0;  ///< the inputs are first, first + stride ...
  int64_t first_tap = 0, tap_step = 1, taps = 0;
  /// Parameters of the convolution of dy. A negative pad means that the first window begins that many pixels after dy's first pixel.
  int64_t dilation = 1, pad = 0;

  AxisPhase(const Window& w, int axis, int64_t rest) {
    const int64_t stride = w.stride[axis], d = w.dilation[axis], common = std::gcd(stride, d);
    first = ((rest - w.pad_begin[axis]) % stride + stride) % stride;
    count = first < w.in[axis] ? (w.in[axis] - first - 1) / stride + 1 : 0;
    tap_step = stride / common, dilation = d / common;
    while (first_tap < w.kernel[axis] && first_tap < tap_step && first_tap * d % stride != rest) ++first_tap;
    if (first_tap >= w.kernel[axis] || first_tap >= tap_step) return;
    taps = (w.kernel[axis] - first_tap - 1) / tap_step + 1;
    const int64_t first_output = (first + w.pad_begin[axis] - rest) / stride, nearest = (first_tap * d - rest) / stride;
    pad = nearest + (taps - 1) * dilation - first_output;
  }
};

/// A phase of the image's pixels: one AxisPhase for each axis.
struct Phase {
  AxisPhase axes[3];
  ConvParams conv;               // convolution of dy whose output contains the phase's inputs contiguously
  int64_t zeros[3] = {0, 0, 0};  // number of zero taps that are prepended if the first window begins after dy's first pixel

  Phase(const ConvParams& p, int64_t d, int64_t h, int64_t w) : axes{{p.window, 0, d}, {p.window, 1, h}, {p.window, 2, w}} {
    conv.N = p.N, conv.C = p.M, conv.M = p.C, conv.group = p.group;
    conv.window.rank = p.window.rank;
    for (int i = 0; i < 3; ++i) {
      const AxisPhase& axis = axes[i];
      zeros[i] = std::max<int64_t>(0, -axis.pad);
      conv.window.in[i] = p.window.out[i], conv.window.out[i] = axis.count;
      conv.window.kernel[i] = axis.taps + zeros[i], conv.window.dilation[i] = axis.dilation;
      conv.window.pad_begin[i] = std::max<int64_t>(0, axis.pad);
      conv.window.pad_end[i] =
          std::max<int64_t>(0, axis.count + (conv.window.kernel[i] - 1) * axis.dilation - conv.window.pad_begin[i] - p.window.out[i]);
    }
  }
  bool has_pixels() const { return axes[0].count > 0 && axes[1].count > 0 && axes[2].count > 0; }
  bool has_taps() const { return axes[0].taps > 0 && axes[1].taps > 0 && axes[2].taps > 0; }
  int64_t pixels() const { return axes[0].count * axes[1].count * axes[2].count; }
  int64_t num_weights() const { return conv.M * (conv.C / conv.group) * conv.window.kernel_size(); }
};

template <typename Visit>
void each_phase(const ConvParams& p, Visit visit) {
  for (int64_t d = 0; d < p.window.stride[0]; ++d)
    for (int64_t h = 0; h < p.window.stride[1]; ++h)
      for (int64_t w = 0; w < p.window.stride[2]; ++w) visit(Phase(p, d, h, w));
}

bool is_whole(const Window& w) { return w.stride[0] == 1 && w.stride[1] == 1 && w.stride[2] == 1; }

/// Sets to[m][k] = from[m * pitch][taps[k]], or 0 if taps[k] < 0. If kBackwards > 0, there are kBackwards taps in reverse order.
template <int kBackwards>
void turn_taps(int64_t count, const float* from, int64_t pitch, std::span<const int64_t> taps, float* to) {
  for (int64_t m = 0; m < count; ++m, from += pitch, to += taps.size()) {
    if constexpr (kBackwards > 0)
      for (int k = 0; k < kBackwards; ++k) to[k] = from[kBackwards - 1 - k];
    else
      for (size_t k = 0; k < taps.size(); ++k) to[k] = taps[k] < 0 ? 0.0F : from[taps[k]];
  }
}

/// Arranges the phase's weights for the convolution of dy: [C, M / group, taps], taps reversed.
void turn_weights(const ConvParams& p, const Phase& phase, const float* weights, float* to, ThreadPool* pool) {
  const int64_t channels = p.C / p.group, filters = p.M / p.group, size = p.window.kernel_size();
  const Window& w = phase.conv.window;
  parallel_for(pool, p.C, std::max<int64_t>(1, 16'384 / std::max<int64_t>(1, filters * w.kernel_size())), [&](int64_t begin, int64_t end) {
    std::vector<int64_t> taps;  // for each position, the original tap; -1: the weight is zero
    for (int64_t d = 0; d < w.kernel[0]; ++d) {
      for (int64_t h = 0; h < w.kernel[1]; ++h) {
        for (int64_t i = 0; i < w.kernel[2]; ++i) {
          const int64_t at[3] = {d, h, i};
          int64_t tap = 0;
          for (int a = 0; a < 3 && tap >= 0; ++a) {
            const int64_t k = w.kernel[a] - 1 - at[a];
            tap = k >= phase.axes[a].taps ? -1 : tap * p.window.kernel[a] + phase.axes[a].first_tap + k * phase.axes[a].tap_step;
          }
          taps.push_back(tap);
        }
      }
    }
    const auto num_taps = static_cast<int64_t>(taps.size());
    if (size == 1 && num_taps == 1 && taps[0] == 0) {  // the convolution is pointwise
      for (int64_t c0 = begin, count; c0 < end; c0 += count) {
        const int64_t group = c0 / channels, first = c0 % channels;
        count = std::min(end - c0, channels - first);
        transpose_plane(filters, count, weights + group * filters * channels + first, channels, to + c0 * filters, filters);
      }
      return;
    }
    // A cache line contains the weights of several channels, so these channels are read one after the other while the line is cached.
    constexpr int64_t kChannels = 16, kFilters = 32;
    bool backwards = num_taps == size;
    for (int64_t k = 0; backwards && k < size; ++k) backwards = taps[static_cast<size_t>(k)] == size - 1 - k;
    const auto turn = backwards && size == 9   ? turn_taps<9>
                      : backwards && size == 5 ? turn_taps<5>
                      : backwards && size == 3 ? turn_taps<3>
                                               : turn_taps<0>;
    for (int64_t c0 = begin; c0 < end; c0 += kChannels)
      for (int64_t m0 = 0; m0 < filters; m0 += kFilters)
        for (int64_t c = c0; c < std::min(end, c0 + kChannels); ++c) {
          const float* from = weights + ((c / channels * filters + m0) * channels + c % channels) * size;
          turn(std::min(kFilters, filters - m0), from, channels * size, taps, to + (c * filters + m0) * num_taps);
        }
  });
}

/// Writes a phase's pixels to their strided positions in dx. If `phase_dx` is null, writes zeros.
void scatter_phase(const ConvParams& p, const Phase& phase, const float* phase_dx, float* dx, ThreadPool* pool) {
  const Window& w = p.window;
  const AxisPhase* a = phase.axes;
  const int64_t rows = p.N * a[0].count * a[1].count;
  const PhaseScope scattering(KernelPhase::output_transform);
  parallel_for(pool, rows, std::max<int64_t>(1, 16'384 / std::max<int64_t>(1, a[2].count * p.C)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t h = a[1].first + r % a[1].count * w.stride[1], d = a[0].first + r / a[1].count % a[0].count * w.stride[0],
                    n = r / a[1].count / a[0].count;
      float* to = dx + (((n * w.in[0] + d) * w.in[1] + h) * w.in[2] + a[2].first) * p.C;
      for (int64_t i = 0; i < a[2].count; ++i, to += w.stride[2] * p.C) {
        if (phase_dx != nullptr)
          std::copy_n(phase_dx + (r * a[2].count + i) * p.C, p.C, to);
        else
          std::fill_n(to, p.C, 0.0F);
      }
    }
  });
}

NhwcMethod method_of(const ConvParams& p, ConvChoice choice) {
  choice.packs_in_run = true;
  return nhwc_method(p, choice);
}

}  // namespace

size_t nhwc_conv_unpacked_scratch_bytes(const ConvParams& p, NhwcMethod method, int max_threads, Bf16Choice bf16) {
  if (bf16 && nhwc_bf16_pays(p, method, *bf16))
    return aligned_bytes<uint32_t>(nhwc_bf16_packed_size(p, *bf16)) + nhwc_bf16_scratch_bytes(p, *bf16);
  if (conv_in_planes_pays(p)) return conv_in_planes_scratch_bytes(p, max_threads);
  if (is_winograd(method)) return winograd_unpacked_scratch_bytes(p, winograd_side(method), max_threads);
  return aligned_bytes<float>(nhwc_packed_size(p, method)) + nhwc_scratch_bytes(p, method, max_threads);
}

void nhwc_conv_unpacked(const ConvParams& p, NhwcMethod method, const float* x, const float* weights, float* y,
                        const ConvEpilogue& epilogue, void* scratch, int max_threads, ThreadPool* pool, Bf16Choice bf16) {
  auto* room = static_cast<std::byte*>(scratch);
  if (bf16 && nhwc_bf16_pays(p, method, *bf16)) {
    auto* words = static_cast<uint32_t*>(scratch);
    {
      const PhaseScope phase(KernelPhase::pack);
      nhwc_bf16_pack(p, *bf16, weights, words);
    }
    void* rest = room + aligned_bytes<uint32_t>(nhwc_bf16_packed_size(p, *bf16));
    return nhwc_bf16_conv(p, *bf16, x, words, y, epilogue, rest, pool);
  }
  if (conv_in_planes_pays(p)) return conv_in_planes(p, x, weights, y, epilogue, scratch, max_threads, pool);
  if (is_winograd(method)) return winograd_unpacked(p, winograd_side(method), x, weights, y, epilogue, scratch, max_threads, pool);
  auto* packed = static_cast<float*>(scratch);
  nhwc_pack(p, method, weights, packed, pool);
  nhwc_conv(p, method, x, weights, packed, y, epilogue, room + aligned_bytes<float>(nhwc_packed_size(p, method)), max_threads, pool);
}

bool conv_grad_input_nhwc_fits(const ConvParams& p) {
  bool fits = p.window.kernel[0] == 1 && p.window.stride[0] == 1;
  each_phase(p, [&](const Phase& phase) {
    for (const AxisPhase& axis : phase.axes) fits &= axis.pad >= 0 || axis.dilation == 1;
  });
  return fits;
}

size_t conv_grad_input_nhwc_scratch_bytes(const ConvParams& p, const ConvChoice& choice, int max_threads, Bf16Choice bf16) {
  if (!bf16 && conv_grad_input_in_planes_pays(p)) return conv_grad_input_in_planes_scratch_bytes(p, max_threads);
  size_t bytes = 0;
  each_phase(p, [&](const Phase& phase) {
    if (!phase.has_pixels() || !phase.has_taps()) return;
    const size_t turned = aligned_bytes<float>(phase.num_weights()),
                 apart = is_whole(p.window) ? 0 : aligned_bytes<float>(p.N * phase.pixels() * p.C);
    bytes =
        std::max(bytes, turned + apart + nhwc_conv_unpacked_scratch_bytes(phase.conv, method_of(phase.conv, choice), max_threads, bf16));
  });
  return bytes;
}

void conv_grad_input_nhwc(const ConvParams& p, const ConvChoice& choice, const float* dy, const float* weights, float* dx, void* scratch,
                          int max_threads, ThreadPool* pool, Bf16Choice bf16) {
  if (!bf16 && conv_grad_input_in_planes_pays(p)) return conv_grad_input_in_planes(p, dy, weights, dx, scratch, max_threads, pool);
  const bool whole = is_whole(p.window);
  each_phase(p, [&](const Phase& phase) {
    if (p.N <= 0 || !phase.has_pixels() || p.C <= 0) return;
    if (!phase.has_taps() || p.M <= 0) return scatter_phase(p, phase, nullptr, dx, pool);
    auto* turned = static_cast<float*>(scratch);
    auto* apart = reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + aligned_bytes<float>(phase.num_weights()));
    float* to = whole ? dx : apart;
    void* rest = reinterpret_cast<std::byte*>(apart) + (whole ? 0 : aligned_bytes<float>(p.N * phase.pixels() * p.C));
    {
      const PhaseScope turning(KernelPhase::pack);
      turn_weights(p, phase, weights, turned, pool);
    }
    nhwc_conv_unpacked(phase.conv, method_of(phase.conv, choice), dy, turned, to, {}, rest, max_threads, pool, bf16);
    if (!whole) scatter_phase(p, phase, to, dx, pool);
  });
}

}  // namespace treadle::kernels
