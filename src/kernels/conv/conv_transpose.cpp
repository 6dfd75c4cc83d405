#include <algorithm>

#include "core/trace/kernel_phases.h"
#include "kernels/conv/col2im.h"
#include "kernels/conv/conv.h"
#include "kernels/gemm/gemm.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

// Returns the shape of the product for one group of one image: columns (M / group * kernel x in) = W^T x. Then col2im() adds up the taps of
// each output.
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
    const PhaseScope phase(KernelPhase::output_transform);
    const int64_t grain = std::max<int64_t>(1, 50'000 / std::max<int64_t>(1, kernel * x_size));
    parallel_for(pool, rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t m = group * rows + row, offset = (image * p.M + m) * y_size;
        float* plane = y + offset;
        col2im(w, columns + row * kernel * x_size, epilogue.bias ? epilogue.bias[m] : 0.0f, plane);
        if (epilogue.residual != nullptr)
          for (int64_t j = 0; j < y_size; ++j) plane[j] += epilogue.residual[offset + j];
        unary_f32(epilogue.activation, epilogue.a, epilogue.b, plane, plane, y_size);
      }
    });
  }
}

}  // namespace treadle::kernels
