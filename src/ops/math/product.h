// Computes shapes and strides of matrix products by the rules of numpy.matmul and of Gemm, for all element types.
#pragma once

#include <algorithm>

#include "graph/infer.h"
#include "kernels/gemm/gemm.h"
#include "ops/checks.h"

namespace treadle::ops {

/// Infers the shape of output 0 from inputs `a` and `b`. @throws Error(invalid_argument) if they cannot be multiplied.
void infer_product(InferContext& c, int a, int b, DType result);

void infer_gemm(InferContext& c);
Cost matmul_cost(const ShapeContext& c);
Cost gemm_cost(const ShapeContext& c);

struct Product {
  kernels::GemmShape shape;
  kernels::BatchStrides batch;

  /// @param merge_rows  true: if B is a single matrix, the batch axes of A become rows of A, so that one product suffices
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

/// The extents and strides of a Gemm.
struct GemmPlan {
  kernels::GemmShape shape;
  int64_t bias_row = 0, bias_col = 0;
  float alpha = 1, beta = 1;
  bool whole = false;  // C has the shape of Y and may share its memory

  static GemmPlan of(const BindContext& c) {
    GemmPlan p;
    const bool trans_a = c.get_int("transA") != 0, trans_b = c.get_int("transB") != 0;
    kernels::GemmShape& s = p.shape;
    s.M = c.shape(0)[trans_a ? 1 : 0];
    s.K = c.shape(0)[trans_a ? 0 : 1];
    s.N = c.shape(1)[trans_b ? 0 : 1];
    check_equal(s.K, c.shape(1)[trans_b ? 1 : 0], "columns of A and rows of B");
    s.a_row = trans_a ? 1 : s.K;
    s.a_col = trans_a ? s.M : 1;
    s.ldb = trans_b ? s.K : s.N;
    s.b_transposed = trans_b;
    s.ldc = s.N;
    p.alpha = c.get_float("alpha", 1);
    p.beta = c.get_float("beta", 1);
    if (c.has_input(2)) {
      const Shape& bias = c.shape(2);
      const int rank = bias.rank();
      if (rank >= 1 && bias[rank - 1] != 1) check_equal(bias[rank - 1], s.N, "columns of C and of A B");
      if (rank == 2 && bias[0] != 1) check_equal(bias[0], s.M, "rows of C and of A B");
      p.bias_col = rank >= 1 && bias[rank - 1] != 1 ? 1 : 0;
      p.bias_row = rank == 2 && bias[0] != 1 ? bias[1] : 0;
      p.whole = p.beta != 0 && bias.num_elements() == s.M * s.N;
    }
    return p;
  }
  template <typename C>
  kernels::Epilogue<C> epilogue(const C* bias, C* out) const {
    kernels::Epilogue<C> e;
    e.alpha = static_cast<C>(alpha);
    if (whole) {
      // Products with a long inner dimension keep partial sums in Y. If C is in Y's memory, it must be added before they overwrite it.
      e.residual = bias, e.residual_row = shape.N;
      if (beta == 1) return e;
      for (int64_t i = 0; i < shape.M * shape.N; ++i) out[i] = static_cast<C>(beta) * bias[i];
      e.residual = out;
    } else if (beta != 0)
      e.bias = bias, e.bias_row = bias_row, e.bias_col = bias_col, e.beta = static_cast<C>(beta);
    return e;
  }
};

}  // namespace treadle::ops
