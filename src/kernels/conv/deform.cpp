#include "kernels/conv/deform.h"

#include <algorithm>
#include <cmath>

#include "kernels/gemm/gemm.h"
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

// Bilinear, with zeros outside of the image.
template <typename T>
T sample(const T* plane, int64_t H, int64_t W, T h, T w) {
  if (!(h > -1 && w > -1 && h < static_cast<T>(H) && w < static_cast<T>(W))) return 0;
  const int64_t h0 = static_cast<int64_t>(std::floor(h)), w0 = static_cast<int64_t>(std::floor(w));
  const T dh = h - static_cast<T>(h0), dw = w - static_cast<T>(w0);
  auto at = [&](int64_t i, int64_t k) { return i >= 0 && i < H && k >= 0 && k < W ? plane[i * W + k] : T{0}; };
  return (1 - dh) * ((1 - dw) * at(h0, w0) + dw * at(h0, w0 + 1)) + dh * ((1 - dw) * at(h0 + 1, w0) + dw * at(h0 + 1, w0 + 1));
}

}  // namespace

template <typename T>
size_t deform_conv_scratch_bytes(const DeformParams& p, int max_threads) {
  return columns_bytes<T>(p) + gemm_scratch_bytes<T>(product_shape(p), max_threads);
}

template <typename T>
void deform_conv(const DeformParams& p, const T* x, const T* weights, const T* offset, const T* bias, const T* mask, T* y, void* scratch,
                 int max_threads, ThreadPool* pool) {
  const Window& w = p.conv.window;
  const int64_t taps = w.kernel_size(), out = w.out_size(), per_offset_group = p.conv.C / p.offset_group;
  T* columns = static_cast<T*>(scratch);
  void* work = static_cast<std::byte*>(scratch) + columns_bytes<T>(p);
  const GemmShape shape = product_shape(p);
  for (int64_t n = 0; n < p.conv.N; ++n) {
    parallel_for(pool, p.conv.C * taps, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, out)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t c = row / taps, tap = row % taps, kh = tap / w.kernel[2], kw = tap % w.kernel[2];
        const int64_t at = (n * p.offset_group + c / per_offset_group) * taps + tap;
        const T *dh = offset + 2 * at * out, *dw = dh + out, *factor = mask ? mask + at * out : nullptr;
        const T* plane = x + (n * p.conv.C + c) * w.in_size();
        T* dst = columns + row * out;
        for (int64_t oh = 0, i = 0; oh < w.out[1]; ++oh) {
          const T h = static_cast<T>(oh * w.stride[1] + kh * w.dilation[1] - w.pad_begin[1]);
          for (int64_t ow = 0; ow < w.out[2]; ++ow, ++i) {
            const T value =
                sample(plane, w.in[1], w.in[2], h + dh[i], static_cast<T>(ow * w.stride[2] + kw * w.dilation[2] - w.pad_begin[2]) + dw[i]);
            dst[i] = factor ? value * factor[i] : value;
          }
        }
      }
    });
    for (int64_t g = 0; g < p.conv.group; ++g) {
      Epilogue<T> epilogue;
      if (bias) epilogue.bias = bias + g * shape.M, epilogue.bias_row = 1, epilogue.bias_col = 0;
      gemm_batched<T>(shape, {}, weights + g * shape.M * shape.K, columns + g * shape.K * out, y + (n * p.conv.M + g * shape.M) * out,
                      epilogue, work, max_threads, pool);
    }
  }
}

template size_t deform_conv_scratch_bytes<float>(const DeformParams&, int);
template size_t deform_conv_scratch_bytes<double>(const DeformParams&, int);
template void deform_conv(const DeformParams&, const float*, const float*, const float*, const float*, const float*, float*, void*, int,
                          ThreadPool*);
template void deform_conv(const DeformParams&, const double*, const double*, const double*, const double*, const double*, double*, void*,
                          int, ThreadPool*);

}  // namespace treadle::kernels
