// Implements Det (ONNX, opset 22): determinants of square matrices.
#include <fmt/format.h>

#include <utility>

#include "graph/infer.h"
#include "graph/inferred_types.h"
#include "graph/op_def.h"
#include "kernels/linalg/eliminate.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  const SymbolicShape& shape = c.shape(0);
  size_t rank = shape.size();
  if (rank < 2 || (shape[rank - 1].is_const() && shape[rank - 2].is_const() && !(shape[rank - 1] == shape[rank - 2])))
    throw Error(ErrorCode::invalid_argument, fmt::format("X is {}; its last two axes must form square matrices", to_string(shape)));
  assume_equal(shape[rank - 1], shape[rank - 2], "rows and columns of a square matrix");
  c.set_output(0, c.dtype(0), SymbolicShape(shape.begin(), shape.end() - 2));
}

template <typename T>
struct Det {
  int64_t matrices, m;

  static Det bind(BindContext& c) {
    const Shape& shape = c.shape(0);
    int64_t m = shape.back();
    if (shape[shape.rank() - 2] != m)
      throw Error(ErrorCode::invalid_argument, fmt::format("X is {}; its last two axes must form square matrices", to_string(shape)));
    c.request_scratch(static_cast<size_t>(m) * static_cast<size_t>(m) * sizeof(double));
    return {c.output_shape(0).num_elements(), m};
  }
  void run(RunContext& c) const {
    double* matrix = c.scratch<double>();
    for (int64_t k = 0; k < matrices; ++k) {
      const T* x = c.in<T>(0) + k * m * m;
      for (int64_t i = 0; i < m * m; ++i) matrix[i] = static_cast<double>(x[i]);
      c.out<T>(0)[k] = static_cast<T>(kernels::determinant(matrix, m));
    }
  }
};

Cost cost(const ShapeContext& c) {
  return {static_cast<double>(c.num_elements(0)) * static_cast<double>(c.shape(0).back()) * 2 / 3, c.size_bytes(0)};
}

// Uses dX = dY y X^-T.
Gradients det_gradient(GradientContext& g) {
  const int rank = rank_of(g, g.input(0));
  std::vector<int64_t> perm;
  for (int axis = 0; axis < rank; ++axis) perm.push_back(axis);
  std::swap(perm[static_cast<size_t>(rank) - 1], perm[static_cast<size_t>(rank) - 2]);
  const ValueId inverse = g.op("Inverse", {g.input(0)}, {}, "com.microsoft");
  const ValueId factor = g.op("Unsqueeze", {g.mul(g.grad_output(0), g.output(0)), g.ints({-2, -1})});
  return {g.mul(factor, g.transpose(inverse, std::move(perm)))};
}

}  // namespace

std::vector<OpDef> linalg_ops() {
  return {{.name = "Det",
           .since = {11, 22},
           .inputs = {{"X", kFloats, "T"}},
           .outputs = {{"Y", kFloats, "T"}},
           .infer = infer,
           .cost = cost,
           .kernels = typed<Det, float, double, Float16, BFloat16>(),
           .gradient = det_gradient}};
}

}  // namespace treadle::ops
