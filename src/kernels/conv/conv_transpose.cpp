#include <algorithm>

#include "kernels/conv/conv.h"
#include "kernels/gemm/gemm.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

// One group of one image: columns (M / group * kernel x in) = W' x, then each output gathers its taps.
GemmShape product_of(const ConvParams& p) {
  const int64_t columns = p.window.out_size(), rows = p.M / p.group * p.window.kernel_size();
  return {.M = rows,
          .N = columns,
          .K = p.C / p.group,
          .a_row = 1,
          .a_col = rows,
          .ldb = columns,
          .b_transposed = false,
          .ldc = columns,
          .batch = 1};
}

/// plane += the taps of one output channel; columns: [kernel][positions of x].
void col2im(const Window& w, const float* columns, float* plane) {
  for (int64_t kd = 0; kd < w.kernel[0]; ++kd) {
    const Outputs depth = outputs_inside(w, 0, kd);
    for (int64_t kh = 0; kh < w.kernel[1]; ++kh) {
      const Outputs height = outputs_inside(w, 1, kh);
      for (int64_t kw = 0; kw < w.kernel[2]; ++kw, columns += w.out_size()) {
        const Outputs width = outputs_inside(w, 2, kw);
        for (int64_t od = depth.first; od < depth.last; ++od) {
          const int64_t id = od * w.stride[0] + kd * w.dilation[0] - w.pad_begin[0];
          for (int64_t oh = height.first; oh < height.last; ++oh) {
            const int64_t ih = oh * w.stride[1] + kh * w.dilation[1] - w.pad_begin[1];
            const float* src = columns + (od * w.out[1] + oh) * w.out[2];
            float* row = plane + (id * w.in[1] + ih) * w.in[2];
            const int64_t shift = kw * w.dilation[2] - w.pad_begin[2], stride = w.stride[2];
            for (int64_t ow = width.first; ow < width.last; ++ow) row[ow * stride + shift] += src[ow];
          }
        }
      }
    }
  }
}

}  // namespace

size_t conv_transpose_scratch_bytes(const ConvParams& p, int max_threads) {
  const GemmShape shape = product_of(p);
  return aligned_bytes<float>(shape.M * shape.N) + gemm_scratch_bytes<float>(shape, max_threads);
}

void conv_transpose(const ConvParams& p, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue, void* scratch,
                    int max_threads, ThreadPool* pool) {
  const Window& w = p.window;
  const GemmShape shape = product_of(p);
  const int64_t y_size = w.in_size(), x_size = w.out_size(), kernel = w.kernel_size(), rows = p.M / p.group;
  if (p.N <= 0 || p.M <= 0 || y_size <= 0) return;
  float* columns = static_cast<float*>(scratch);
  void* gemm_scratch = static_cast<std::byte*>(scratch) + aligned_bytes<float>(shape.M * shape.N);
  for (int64_t i = 0; i < p.N * p.group; ++i) {
    const int64_t image = i / p.group, group = i % p.group;
    gemm_batched<float>(shape, {}, weights + group * shape.K * shape.M, x + (image * p.C + group * shape.K) * x_size, columns, {},
                        gemm_scratch, max_threads, pool);
    const int64_t grain = std::max<int64_t>(1, 50'000 / std::max<int64_t>(1, kernel * x_size));
    parallel_for(pool, rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t m = group * rows + row, offset = (image * p.M + m) * y_size;
        float* plane = y + offset;
        const float bias = epilogue.bias ? epilogue.bias[m] : 0.0f;
        if (epilogue.residual != nullptr) {
          for (int64_t j = 0; j < y_size; ++j) plane[j] = epilogue.residual[offset + j] + bias;
        } else {
          std::fill(plane, plane + y_size, bias);
        }
        col2im(w, columns + row * kernel * x_size, plane);
        unary_f32(epilogue.activation, epilogue.a, epilogue.b, plane, plane, y_size);
      }
    });
  }
}

}  // namespace treadle::kernels
