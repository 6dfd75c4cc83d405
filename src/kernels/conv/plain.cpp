#include "kernels/conv/plain.h"

#include <algorithm>

#include "core/trace/kernel_phases.h"

namespace treadle::kernels {
namespace {

/// Calls fn(input offset, output offset, number of outputs, tap) for each tap and each output row that the tap reaches. Output i of the row
/// reads the input at the input offset + i * stride.
template <typename Fn>
void for_each_tap_row(const Window& w, Fn fn) {
  int64_t tap = 0;
  for (int64_t kd = 0; kd < w.kernel[0]; ++kd) {
    for (int64_t kh = 0; kh < w.kernel[1]; ++kh) {
      for (int64_t kw = 0; kw < w.kernel[2]; ++kw, ++tap) {
        const Outputs depth = outputs_inside(w, 0, kd), height = outputs_inside(w, 1, kh), width = outputs_inside(w, 2, kw);
        for (int64_t od = depth.first; od < depth.last; ++od) {
          const int64_t id = od * w.stride[0] + kd * w.dilation[0] - w.pad_begin[0];
          for (int64_t oh = height.first; oh < height.last; ++oh) {
            const int64_t ih = oh * w.stride[1] + kh * w.dilation[1] - w.pad_begin[1];
            const int64_t in = (id * w.in[1] + ih) * w.in[2] + kw * w.dilation[2] - w.pad_begin[2];
            fn(in, (od * w.out[1] + oh) * w.out[2], width, tap);
          }
        }
      }
    }
  }
}

/// Computes a convolution or its transpose, which exchanges the roles of x and y. Each thread writes whole planes of y.
template <bool kTransposed, typename T>
void convolve(const ConvParams& p, const T* x, const T* weights, const T* bias, T* y, ThreadPool* pool) {
  const Window& w = p.window;
  const int64_t channels = p.C / p.group, filters = p.M / p.group, taps = w.kernel_size();
  const int64_t x_size = kTransposed ? w.out_size() : w.in_size(), y_size = kTransposed ? w.in_size() : w.out_size();
  parallel_for(pool, p.N * p.M, 1, [&](int64_t begin, int64_t end) {
    const PhaseScope phase(KernelPhase::compute);
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t n = plane / p.M, m = plane % p.M, first_channel = m / filters * channels;
      T* dst = y + plane * y_size;
      std::fill_n(dst, y_size, bias ? bias[m] : T{0});
      for (int64_t c = 0; c < channels; ++c) {
        const T* src = x + (n * p.C + first_channel + c) * x_size;
        const T* filter = weights + (kTransposed ? (first_channel + c) * filters + m % filters : m * channels + c) * taps;
        for_each_tap_row(w, [&](int64_t in, int64_t out, Outputs o, int64_t tap) {
          const T factor = filter[tap];
          for (int64_t i = o.first; i < o.last; ++i) {
            if constexpr (kTransposed)
              dst[in + i * w.stride[2]] += src[out + i] * factor;
            else
              dst[out + i] += src[in + i * w.stride[2]] * factor;
          }
        });
      }
    }
  });
}

}  // namespace

template <typename T>
void conv_plain(const ConvParams& p, const T* x, const T* weights, const T* bias, T* y, ThreadPool* pool) {
  convolve<false>(p, x, weights, bias, y, pool);
}

template <typename T>
void conv_transpose_plain(const ConvParams& p, const T* x, const T* weights, const T* bias, T* y, ThreadPool* pool) {
  convolve<true>(p, x, weights, bias, y, pool);
}

template void conv_plain(const ConvParams&, const double*, const double*, const double*, double*, ThreadPool*);
template void conv_transpose_plain(const ConvParams&, const double*, const double*, const double*, double*, ThreadPool*);

}  // namespace treadle::kernels
