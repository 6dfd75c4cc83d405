#include "kernels/conv/conv_gradient.h"

#include <algorithm>

#include "core/trace/kernel_phases.h"
#include "kernels/gemm/gemm.h"

namespace treadle::kernels {
namespace {

template <typename T>
size_t columns_bytes(const ConvParams& p) {
  const auto elements = static_cast<size_t>(p.C / p.group * p.window.kernel_size() * p.window.out_size());
  return (elements * sizeof(T) + 63) & ~size_t{63};
}

GemmShape product_shape(const ConvParams& p) {
  GemmShape s;
  s.M = p.M / p.group, s.N = p.C / p.group * p.window.kernel_size(), s.K = p.window.out_size();
  s.a_row = s.ldb = s.K;
  s.b_transposed = true;
  s.ldc = s.N;
  return s;
}

// im2col: row (channel, tap) holds the input element that the tap reads for each output.
template <typename T>
void columns_of(const Window& w, int64_t channels, const T* x, T* columns, ThreadPool* pool) {
  const int64_t taps = w.kernel_size(), out_size = w.out_size();
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, out_size));
  const PhaseScope phase(KernelPhase::windows);
  parallel_for(pool, channels * taps, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t tap = row % taps;
      const int64_t kd = tap / (w.kernel[1] * w.kernel[2]), kh = tap / w.kernel[2] % w.kernel[1], kw = tap % w.kernel[2];
      const T* src = x + row / taps * w.in_size();
      T* dst = columns + row * out_size;
      std::fill_n(dst, out_size, T{0});
      const Outputs depth = outputs_inside(w, 0, kd), height = outputs_inside(w, 1, kh), width = outputs_inside(w, 2, kw);
      for (int64_t od = depth.first; od < depth.last; ++od) {
        const int64_t id = od * w.stride[0] + kd * w.dilation[0] - w.pad_begin[0];
        for (int64_t oh = height.first; oh < height.last; ++oh) {
          const int64_t ih = oh * w.stride[1] + kh * w.dilation[1] - w.pad_begin[1];
          const T* from = src + (id * w.in[1] + ih) * w.in[2] + kw * w.dilation[2] - w.pad_begin[2];
          T* to = dst + (od * w.out[1] + oh) * w.out[2];
          for (int64_t ow = width.first; ow < width.last; ++ow) to[ow] = from[ow * w.stride[2]];
        }
      }
    }
  });
}

}  // namespace

template <typename T>
size_t conv_grad_weights_scratch_bytes(const ConvParams& p, int max_threads) {
  return columns_bytes<T>(p) + gemm_scratch_bytes<T>(product_shape(p), max_threads);
}

template <typename T>
void conv_grad_weights(const ConvParams& p, const T* dy, const T* x, T* dw, void* scratch, int max_threads, ThreadPool* pool) {
  const GemmShape shape = product_shape(p);
  const int64_t channels = p.C / p.group, group_size = shape.M * shape.N;
  if (p.N == 0 || shape.K == 0) return std::fill_n(dw, p.M * shape.N, T{0}), void();
  if (group_size == 0) return;
  T* columns = static_cast<T*>(scratch);
  void* work = static_cast<std::byte*>(scratch) + columns_bytes<T>(p);
  for (int64_t n = 0; n < p.N; ++n) {
    for (int64_t g = 0; g < p.group; ++g) {
      columns_of(p.window, channels, x + (n * p.C + g * channels) * p.window.in_size(), columns, pool);
      T* out = dw + g * group_size;
      Epilogue<T> epilogue;
      if (n > 0) epilogue.residual = out, epilogue.residual_row = shape.N;
      gemm_batched<T>(shape, {}, dy + (n * p.M + g * shape.M) * shape.K, columns, out, epilogue, work, max_threads, pool);
    }
  }
}

template size_t conv_grad_weights_scratch_bytes<float>(const ConvParams&, int);
template size_t conv_grad_weights_scratch_bytes<double>(const ConvParams&, int);
template void conv_grad_weights(const ConvParams&, const float*, const float*, float*, void*, int, ThreadPool*);
template void conv_grad_weights(const ConvParams&, const double*, const double*, double*, void*, int, ThreadPool*);

}  // namespace treadle::kernels
