#include "kernels/conv/deform.h"

#include <algorithm>
#include <cmath>

#include "kernels/gemm/gemm.h"
#include "kernels/image/squares.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

GemmShape product_shape(const DeformParams& p) {
  GemmShape s;
  s.M = p.conv.M / p.conv.group, s.K = p.conv.C / p.conv.group * p.conv.window.kernel_size(), s.N = p.conv.window.out_size();
  s.a_row = s.K, s.ldb = s.N, s.ldc = s.N;
  return s;
}

template <typename T>
size_t columns_bytes(const DeformParams& p) {
  return aligned_bytes<T>(p.conv.C * p.conv.window.kernel_size() * p.conv.window.out_size());
}

// Interpolates bilinearly, with zeros outside the image.
template <typename T>
T sample(const T* plane, int64_t H, int64_t W, T h, T w) {
  if (!(h > -1 && w > -1 && h < static_cast<T>(H) && w < static_cast<T>(W))) return 0;
  const int64_t h0 = static_cast<int64_t>(std::floor(h)), w0 = static_cast<int64_t>(std::floor(w));
  const T dh = h - static_cast<T>(h0), dw = w - static_cast<T>(w0);
  auto at = [&](int64_t i, int64_t k) { return i >= 0 && i < H && k >= 0 && k < W ? plane[i * W + k] : T{0}; };
  return (1 - dh) * ((1 - dw) * at(h0, w0) + dw * at(h0, w0 + 1)) + dh * ((1 - dw) * at(h0 + 1, w0) + dw * at(h0 + 1, w0 + 1));
}

// Calls fn(index of the tap in the offsets, output, row, column) for each element of row (channel, tap) of image n's im2col columns.
template <typename T, typename Fn>
void for_each_place(const DeformParams& p, int64_t n, int64_t row, const T* offset, Fn&& fn) {
  const Window& w = p.conv.window;
  const int64_t taps = w.kernel_size(), out = w.out_size(), c = row / taps, tap = row % taps, kh = tap / w.kernel[2],
                kw = tap % w.kernel[2];
  const int64_t at = (n * p.offset_group + c / (p.conv.C / p.offset_group)) * taps + tap;
  const T *dh = offset + 2 * at * out, *dw = dh + out;
  for (int64_t oh = 0, i = 0; oh < w.out[1]; ++oh) {
    const T h = static_cast<T>(oh * w.stride[1] + kh * w.dilation[1] - w.pad_begin[1]);
    for (int64_t ow = 0; ow < w.out[2]; ++ow, ++i)
      fn(at, i, h + dh[i], static_cast<T>(ow * w.stride[2] + kw * w.dilation[2] - w.pad_begin[2]) + dw[i]);
  }
}

// Samples one tap for `count` outputs, beginning with output `first`, for all channels that share its offsets.
template <typename T>
void sample_points(const DeformParams& p, int64_t n, int64_t group, int64_t tap, int64_t first, int64_t count, const T* x, const T* offset,
                   const T* mask, T* columns) {
  constexpr int64_t kPoints = SampledSquares<T>::kPoints;
  const Window& w = p.conv.window;
  const int64_t taps = w.kernel_size(), out = w.out_size(), channels = p.conv.C / p.offset_group;
  const int64_t at = (n * p.offset_group + group) * taps + tap;
  const T *down = offset + 2 * at * out + first, *across = down + out, *weight = mask ? mask + at * out + first : nullptr;
  const int64_t top = tap / w.kernel[2] * w.dilation[1] - w.pad_begin[1], left = tap % w.kernel[2] * w.dilation[2] - w.pad_begin[2];
  T rows[kPoints] = {}, places[kPoints] = {}, samples[kPoints];
  int64_t oh = first / w.out[2], ow = first % w.out[2];
  for (int64_t i = 0; i < count; ++i) {
    rows[i] = static_cast<T>(oh * w.stride[1] + top) + down[i];
    places[i] = static_cast<T>(ow * w.stride[2] + left) + across[i];
    if (++ow == w.out[2]) ow = 0, ++oh;
  }
  SampledSquares<T> squares;
  find_squares(w.in[1], w.in[2], rows, places, squares);
  for (int64_t c = group * channels; c < (group + 1) * channels; ++c) {
    sample_squares(squares, x + (n * p.conv.C + c) * w.in_size(), w.in[2], samples);
    T* dst = columns + (c * taps + tap) * out + first;
    for (int64_t i = 0; i < count; ++i) dst[i] = weight ? samples[i] * weight[i] : samples[i];
  }
}

// Fills the im2col columns[C * taps, out] of image n with samples.
template <typename T>
void sample_columns(const DeformParams& p, int64_t n, const T* x, const T* offset, const T* mask, T* columns, ThreadPool* pool) {
  const Window& w = p.conv.window;
  const int64_t taps = w.kernel_size(), out = w.out_size();
  if (w.in[1] >= 2 && w.in[2] >= 2) {
    constexpr int64_t kPoints = SampledSquares<T>::kPoints;
    const int64_t blocks = (out + kPoints - 1) / kPoints, channels = std::max<int64_t>(1, p.conv.C / p.offset_group);
    const int64_t grain = std::max<int64_t>(1, 4096 / (kPoints * channels));
    return parallel_for(pool, p.offset_group * taps * blocks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t first = item % blocks * kPoints, row = item / blocks;
        sample_points(p, n, row / taps, row % taps, first, std::min(kPoints, out - first), x, offset, mask, columns);
      }
    });
  }
  parallel_for(pool, p.conv.C * taps, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, out)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* plane = x + (n * p.conv.C + row / taps) * w.in_size();
      T* dst = columns + row * out;
      for_each_place(p, n, row, offset, [&](int64_t at, int64_t i, T h, T v) {
        const T value = sample(plane, w.in[1], w.in[2], h, v);
        dst[i] = mask ? value * mask[at * out + i] : value;
      });
    }
  });
}

}  // namespace

template <typename T>
size_t deform_conv_scratch_bytes(const DeformParams& p, int max_threads) {
  return columns_bytes<T>(p) + gemm_scratch_bytes<T>(product_shape(p), max_threads);
}

template <typename T>
void deform_conv(const DeformParams& p, const T* x, const T* weights, const T* offset, const T* bias, const T* mask, T* y, void* scratch,
                 int max_threads, ThreadPool* pool) {
  const int64_t out = p.conv.window.out_size();
  T* columns = static_cast<T*>(scratch);
  void* work = static_cast<std::byte*>(scratch) + columns_bytes<T>(p);
  const GemmShape shape = product_shape(p);
  for (int64_t n = 0; n < p.conv.N; ++n) {
    sample_columns(p, n, x, offset, mask, columns, pool);
    for (int64_t g = 0; g < p.conv.group; ++g) {
      Epilogue<T> epilogue;
      if (bias) epilogue.bias = bias + g * shape.M, epilogue.bias_row = 1, epilogue.bias_col = 0;
      gemm_batched<T>(shape, {}, weights + g * shape.M * shape.K, columns + g * shape.K * out, y + (n * p.conv.M + g * shape.M) * out,
                      epilogue, work, max_threads, pool);
    }
  }
}

namespace {

// The shapes of the backward pass's two products: one computes the gradient of the columns, the other that of the weights.
GemmShape columns_shape(const DeformParams& p) {
  const GemmShape forward = product_shape(p);
  GemmShape s;
  s.M = forward.K, s.K = forward.M, s.N = forward.N;
  s.a_row = 1, s.a_col = forward.K, s.ldb = s.N, s.ldc = s.N;
  return s;
}
GemmShape weights_shape(const DeformParams& p) {
  const GemmShape forward = product_shape(p);
  GemmShape s;
  s.M = forward.M, s.K = forward.N, s.N = forward.K;
  s.a_row = s.K, s.ldb = s.K, s.b_transposed = true, s.ldc = s.N;
  return s;
}

// Propagates the gradient of image n's columns to x, the offsets and the mask. Each thread handles whole offset groups with all their
// channels.
template <typename T>
void scatter_columns(const DeformParams& p, int64_t n, const T* x, const T* offset, const T* mask, const T* flow,
                     const DeformGradients<T>& d, ThreadPool* pool) {
  const Window& w = p.conv.window;
  const int64_t taps = w.kernel_size(), out = w.out_size(), H = w.in[1], W = w.in[2], rows = p.conv.C / p.offset_group * taps;
  parallel_for(pool, p.offset_group, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * rows; row < end * rows; ++row) {
      const T* plane = x + (n * p.conv.C + row / taps) * w.in_size();
      T* dplane = d.x + (n * p.conv.C + row / taps) * w.in_size();
      for_each_place(p, n, row, offset, [&](int64_t at, int64_t i, T h, T v) {
        if (!(h > -1 && v > -1 && h < static_cast<T>(H) && v < static_cast<T>(W))) return;
        const T value = flow[row * out + i], weighted = mask ? value * mask[at * out + i] : value;
        const int64_t h0 = static_cast<int64_t>(std::floor(h)), w0 = static_cast<int64_t>(std::floor(v));
        const T dh = h - static_cast<T>(h0), dw = v - static_cast<T>(w0);
        T by_h = 0, by_w = 0, sum = 0;
        for (int k = 0; k < 4; ++k) {
          const int64_t y = h0 + k / 2, z = w0 + k % 2;
          if (y < 0 || y >= H || z < 0 || z >= W) continue;
          const T along_h = k / 2 ? dh : 1 - dh, along_w = k % 2 ? dw : 1 - dw, element = plane[y * W + z];
          dplane[y * W + z] += weighted * along_h * along_w;
          sum += element * along_h * along_w;
          by_h += (k / 2 ? element : -element) * along_w, by_w += (k % 2 ? element : -element) * along_h;
        }
        d.offset[2 * at * out + i] += weighted * by_h;
        d.offset[(2 * at + 1) * out + i] += weighted * by_w;
        if (d.mask) d.mask[at * out + i] += value * sum;
      });
    }
  });
}

}  // namespace

template <typename T>
size_t deform_conv_gradient_scratch_bytes(const DeformParams& p, int max_threads) {
  return columns_bytes<T>(p) +
         std::max(gemm_scratch_bytes<T>(columns_shape(p), max_threads), gemm_scratch_bytes<T>(weights_shape(p), max_threads));
}

template <typename T>
void deform_conv_gradient(const DeformParams& p, const T* x, const T* weights, const T* offset, const T* mask, const T* dy,
                          const DeformGradients<T>& d, void* scratch, int max_threads, ThreadPool* pool) {
  T* columns = static_cast<T*>(scratch);
  void* work = static_cast<std::byte*>(scratch) + columns_bytes<T>(p);
  const GemmShape forward = product_shape(p);
  const int64_t out = p.conv.window.out_size(), places = p.conv.N * p.offset_group * p.conv.window.kernel_size() * out;
  std::fill_n(d.x, p.conv.N * p.conv.C * p.conv.window.in_size(), T{0});
  std::fill_n(d.weights, p.conv.M * forward.K, T{0});
  std::fill_n(d.offset, 2 * places, T{0});
  if (d.mask) std::fill_n(d.mask, places, T{0});
  for (int64_t n = 0; n < p.conv.N; ++n) {
    sample_columns(p, n, x, offset, mask, columns, pool);
    for (int64_t g = 0; g < p.conv.group; ++g) {
      T* dw = d.weights + g * forward.M * forward.K;
      gemm_batched<T>(weights_shape(p), {}, dy + (n * p.conv.M + g * forward.M) * out, columns + g * forward.K * out, dw,
                      {.residual = dw, .residual_row = forward.K}, work, max_threads, pool);
    }
    for (int64_t g = 0; g < p.conv.group; ++g)
      gemm_batched<T>(columns_shape(p), {}, weights + g * forward.M * forward.K, dy + (n * p.conv.M + g * forward.M) * out,
                      columns + g * forward.K * out, {}, work, max_threads, pool);
    scatter_columns(p, n, x, offset, mask, static_cast<const T*>(columns), d, pool);
  }
}

#define TREADLE_INSTANTIATE(T)                                                                                                         \
  template size_t deform_conv_gradient_scratch_bytes<T>(const DeformParams&, int);                                                     \
  template void deform_conv_gradient(const DeformParams&, const T*, const T*, const T*, const T*, const T*, const DeformGradients<T>&, \
                                     void*, int, ThreadPool*);
TREADLE_INSTANTIATE(float)
TREADLE_INSTANTIATE(double)
#undef TREADLE_INSTANTIATE
template size_t deform_conv_scratch_bytes<float>(const DeformParams&, int);
template size_t deform_conv_scratch_bytes<double>(const DeformParams&, int);
template void deform_conv(const DeformParams&, const float*, const float*, const float*, const float*, const float*, float*, void*, int,
                          ThreadPool*);
template void deform_conv(const DeformParams&, const double*, const double*, const double*, const double*, const double*, double*, void*,
                          int, ThreadPool*);

}  // namespace treadle::kernels
