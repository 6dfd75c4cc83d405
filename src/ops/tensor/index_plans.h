// Computes the extents of operators that select elements by indices or triangles: OneHot, Trilu, ScatterElements, ScatterND.
#pragma once

#include "graph/kernel.h"
#include "kernels/movement/gather.h"
#include "ops/checks.h"

namespace treadle::ops {

/// The output of OneHot seen as [outer, depth, inner].
struct OneHotPlan {
  int64_t outer = 1, depth = 1, inner = 1;

  static OneHotPlan bind(const BindContext& c) {
    const Shape& out = c.output_shape(0);
    const int axis = c.axis("axis", -1, out.rank());
    check_equal(c.num_elements(2), 2, "elements of values and 2");
    return {out.product(0, axis), out[axis], out.product(axis + 1, out.rank())};
  }
};

/// The matrices of a Trilu. In row r, the columns from r + k on are kept if `upper` is true, otherwise the columns up to r + k.
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
/// Returns the reduction of a scatter operator. @throws Error(invalid_argument) if the attribute names an unknown one
ScatterReduction scatter_reduction(const Attributes& attributes);

/// Returns the extents and strides of a ScatterElements. @throws Error(invalid_argument) if indices or updates do not match the data
kernels::ElementsPlan bind_scatter_elements(const BindContext& c);
kernels::TuplePlan bind_scatter_nd(const BindContext& c);

}  // namespace treadle::ops
