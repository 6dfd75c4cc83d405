// The extents of numpy.matmul, which float and integer products share.
#pragma once

#include <algorithm>

#include "graph/infer.h"
#include "kernels/gemm/gemm.h"
#include "ops/checks.h"

namespace treadle::ops {

/// Shape of output 0 from inputs `a` and `b`. @throws Error(invalid_argument) if they cannot be multiplied.
void infer_product(InferContext& c, int a, int b, DType result);

struct Product {
  kernels::GemmShape shape;
  kernels::BatchStrides batch;

  /// @param merge_rows  where B is one matrix, the batch of A is so many more rows of one product
  static Product of(const Shape& a, const Shape& b, bool merge_rows = true) {
    Product p;
    kernels::GemmShape& s = p.shape;
    s.M = a.rank() == 1 ? 1 : a[a.rank() - 2];
    s.K = a.back();
    s.N = b.rank() == 1 ? 1 : b.back();
    check_equal(s.K, b.rank() == 1 ? b[0] : b[b.rank() - 2], "columns of A and rows of B");
    s.a_row = s.K;
    s.ldb = s.ldc = s.N;
    const auto a_batch = a.dims().subspan(0, static_cast<size_t>(std::max(a.rank() - 2, 0)));
    const auto b_batch = b.dims().subspan(0, static_cast<size_t>(std::max(b.rank() - 2, 0)));
    int64_t b_matrices = 1;
    for (int64_t extent : b_batch) b_matrices *= extent;
    if (b_matrices == 1 && merge_rows) {
      for (int64_t extent : a_batch) s.M *= extent;
    } else {
      p.batch = kernels::broadcast_batches(a_batch, b_batch, s.M * s.K, s.K * s.N, s.M * s.N);
    }
    s.batch = kernels::num_products(p.batch);
    return p;
  }
};

}  // namespace treadle::ops
