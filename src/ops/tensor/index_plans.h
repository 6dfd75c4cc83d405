// Computes the extents of operators that place elements by indices or triangles: OneHot, Trilu, ScatterElements, ScatterND.
#pragma once

#include "graph/kernel.h"
#include "kernels/movement/gather.h"
#include "ops/checks.h"

namespace treadle::ops {

/// Describes the output of OneHot as [outer, depth, inner].
struct OneHotPlan {
  int64_t outer = 1, depth = 1, inner = 1;

  static OneHotPlan bind(const BindContext& c) {
    const Shape& out = c.output_shape(0);
    const int axis = c.axis("axis", -1, out.rank());
    check_equal(c.num_elements(2), 2, "elements of values and 2");
    return {out.product(0, axis), out[axis], out.product(axis + 1, out.rank())};
  }
};

/// Describes the matrices of Trilu. If `upper` is set, column row + k and later ones are kept; if not, columns up to row + k.
struct TriluPlan {
  bool upper = true;
  int64_t k = 0, matrices = 0, rows = 0, columns = 0;

  static TriluPlan bind(const BindContext& c) {
    const Shape& shape = c.shape(0);
    const int rank = shape.rank();
    if (c.has_input(1)) check_equal(c.num_elements(1), 1, "elements of k");
    return {c.get_int("upper", 1) != 0, c.has_input(1) ? c.value_at(1, 0) : 0, shape.product(0, rank - 2), shape[rank - 2],
            shape[rank - 1]};
  }
};

enum class ScatterReduction : uint8_t { none, add, mul, max, min };
/// Returns the reduction. @throws Error(invalid_argument) if there is no such reduction
ScatterReduction scatter_reduction(const Attributes& attributes);

/// Plans ScatterElements. @throws Error(invalid_argument) if indices or updates do not fit the data
kernels::ElementsPlan bind_scatter_elements(const BindContext& c);
kernels::TuplePlan bind_scatter_nd(const BindContext& c);

}  // namespace treadle::ops
