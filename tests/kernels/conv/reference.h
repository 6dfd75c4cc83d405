// Computes convolutions and windows element by element in double. These are the expected values in tests of kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/conv/conv.h"
#include "kernels/conv/pool.h"
#include "tests/kernels/random.h"

namespace treadle::test {

/// Returns a random window over `rank` axes, with output extents that fit.
inline kernels::Window random_window(Random& random, int rank, int64_t max_in, bool ceil_mode = false) {
  std::vector<int64_t> in, out, kernel, stride, pads(2 * static_cast<size_t>(rank)), dilation;
  for (int i = 0; i < rank; ++i) {
    in.push_back(random.integer(1, max_in));
    kernel.push_back(random.integer(1, 4));
    stride.push_back(random.integer(1, 3));
    dilation.push_back(random.coin() ? 1 : random.integer(1, 2));
    const int64_t reach = dilation.back() * (kernel.back() - 1) + 1;
    pads[static_cast<size_t>(i)] = random.integer(0, kernel.back() - 1);
    pads[static_cast<size_t>(rank + i)] = random.integer(0, kernel.back() - 1);
    if (in.back() + pads[static_cast<size_t>(i)] + pads[static_cast<size_t>(rank + i)] < reach) in.back() = reach;
    out.push_back(kernels::pool_out_extent(in.back(), kernel.back(), stride.back(), dilation.back(), pads[static_cast<size_t>(i)],
                                           pads[static_cast<size_t>(rank + i)], ceil_mode));
  }
  return kernels::make_window(in, out, kernel, stride, pads, dilation);
}

/// Like random_window() over two axes with the given extents; kernels have up to 7 elements per axis.
inline kernels::Window random_window_over(Random& random, std::span<const int64_t> in) {
  std::vector<int64_t> out, kernel, stride, pads(4), dilation;
  for (size_t i = 0; i < 2; ++i) {
    kernel.push_back(random.integer(1, 7));
    stride.push_back(random.integer(1, 2));
    dilation.push_back(random.integer(0, 3) == 0 ? 2 : 1);
    const int64_t reach = dilation[i] * (kernel[i] - 1) + 1;
    pads[i] = random.integer(0, kernel[i] - 1);
    pads[2 + i] = std::max(random.integer(0, kernel[i] - 1), reach - pads[i] - in[i]);
    out.push_back(kernels::pool_out_extent(in[i], kernel[i], stride[i], dilation[i], pads[i], pads[2 + i], false));
  }
  return kernels::make_window(in, out, kernel, stride, pads, dilation);
}

/// Converts [planes][channels][pixels] to channels last.
template <typename T>
std::vector<T> channels_last(const std::vector<T>& x, int64_t planes, int64_t channels) {
  std::vector<T> y(x.size());
  const int64_t pixels = channels * planes == 0 ? 0 : static_cast<int64_t>(x.size()) / planes / channels;
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    const int64_t n = i / (channels * pixels), c = i / pixels % channels, at = i % pixels;
    y[(n * pixels + at) * channels + c] = x[i];
  }
  return y;
}

/// Applies an epilogue that clips, has the sigmoid or no activation to sums with channels last.
inline void apply_epilogue(const kernels::ConvEpilogue& e, int64_t channels, std::vector<double>& y) {
  for (size_t i = 0; i < y.size(); ++i) {
    if (e.bias) y[i] += double{e.bias[i % static_cast<size_t>(channels)]};
    if (e.residual) y[i] += double{e.residual[i]};
    if (e.activation == kernels::Unary::clip) y[i] = std::clamp(y[i], double{e.a}, double{e.b});
    if (e.activation == kernels::Unary::sigmoid) y[i] = 1 / (1 + std::exp(-y[i]));
  }
}

/// Calls fn(output index, tap number, input index or -1) for every output and tap.
template <typename Fn>
void for_each_tap(const kernels::Window& w, Fn fn) {
  int64_t o = 0;
  for (int64_t od = 0; od < w.out[0]; ++od) {
    for (int64_t oh = 0; oh < w.out[1]; ++oh) {
      for (int64_t ow = 0; ow < w.out[2]; ++ow, ++o) {
        int64_t k = 0;
        for (int64_t kd = 0; kd < w.kernel[0]; ++kd) {
          for (int64_t kh = 0; kh < w.kernel[1]; ++kh) {
            for (int64_t kw = 0; kw < w.kernel[2]; ++kw, ++k) {
              const int64_t d = od * w.stride[0] + kd * w.dilation[0] - w.pad_begin[0];
              const int64_t h = oh * w.stride[1] + kh * w.dilation[1] - w.pad_begin[1];
              const int64_t x = ow * w.stride[2] + kw * w.dilation[2] - w.pad_begin[2];
              const bool inside = d >= 0 && d < w.in[0] && h >= 0 && h < w.in[1] && x >= 0 && x < w.in[2];
              fn(o, k, inside ? (d * w.in[1] + h) * w.in[2] + x : -1);
            }
          }
        }
      }
    }
  }
}

/// Convolves by the definition. T may be an integer type. @return y with the shape [N, M, out]
template <typename T, typename Sum>
std::vector<Sum> reference_conv(const kernels::ConvParams& p, const std::vector<T>& x, const std::vector<T>& weights) {
  const kernels::Window& w = p.window;
  const int64_t channels = p.C / p.group, rows = p.M / p.group;
  std::vector<Sum> y(static_cast<size_t>(p.N * p.M * w.out_size()));
  for (int64_t n = 0; n < p.N; ++n) {
    for (int64_t m = 0; m < p.M; ++m) {
      for (int64_t c = 0; c < channels; ++c) {
        const T* plane = x.data() + (n * p.C + m / rows * channels + c) * w.in_size();
        const T* taps = weights.data() + (m * channels + c) * w.kernel_size();
        for_each_tap(w, [&](int64_t o, int64_t k, int64_t i) {
          if (i >= 0) y[static_cast<size_t>((n * p.M + m) * w.out_size() + o)] += static_cast<Sum>(plane[i]) * static_cast<Sum>(taps[k]);
        });
      }
    }
  }
  return y;
}

}  // namespace treadle::test
