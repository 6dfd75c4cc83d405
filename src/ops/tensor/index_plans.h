// Computes the extents of operators that place elements by indices, lengths, conditions or triangles, for kernels of every device.
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

/// Describes the input of ReverseSequence, whose batch and time are its first two axes, in any order. Strides count elements.
struct ReverseSequencePlan {
  int64_t time, batch, inner, time_stride, batch_stride;

  static ReverseSequencePlan bind(const BindContext& c) {
    const Shape& shape = c.shape(0);
    const bool batch_first = c.get_int("batch_axis", 1) == 0;
    check_equal(c.num_elements(1), shape[batch_first ? 0 : 1], "elements of sequence_lens and the batch");
    const int64_t inner = shape.product(2, shape.rank()), outer_stride = shape[1] * inner;
    if (batch_first) return {shape[1], shape[0], inner, inner, outer_stride};
    return {shape[0], shape[1], inner, outer_stride, inner};
  }
};

/// Describes the input of Compress, or of Unique, as [outer, extent, inner].
struct AlongAxis {
  Shape shape;
  int axis = -1;  ///< -1: the input is flattened
  int64_t outer = 1, extent = 0, inner = 1;

  static AlongAxis bind(const BindContext& c) {
    const Shape& shape = c.shape(0);
    if (!c.node().attributes.has("axis")) return {shape, -1, 1, shape.num_elements(), 1};
    const int axis = c.axis("axis", 0, shape.rank());
    return {shape, axis, shape.product(0, axis), shape[axis], shape.product(axis + 1, shape.rank())};
  }
  /// Returns the shape of an output with so many slices or, without an axis, elements.
  Shape with_extent(int64_t count) const {
    if (axis < 0) return Shape{count};
    Shape result = shape;
    result[axis] = count;
    return result;
  }
};

enum class ScatterReduction : uint8_t { none, add, mul, max, min };
/// Returns the reduction of a scatter operator. @throws Error(invalid_argument) if the attribute names an unknown one
ScatterReduction scatter_reduction(const Attributes& attributes);

/// Returns the extents and strides of a ScatterElements. @throws Error(invalid_argument) if indices or updates do not match the data
kernels::ElementsPlan bind_scatter_elements(const BindContext& c);
kernels::TuplePlan bind_scatter_nd(const BindContext& c);

}  // namespace treadle::ops
