// The extents of the tensor that a Gather reads: [outer, extent, inner], where `extent` is that of the gathered axis.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

struct GatherExtents {
  int64_t outer, extent, inner, num_indices;

  /// @param data  shape of the tensor that is read; for a gradient, this is the shape of the gradient's output
  static GatherExtents of(const BindContext& c, const Shape& data) {
    const int axis = c.axis("axis", 0, data.rank());
    return {data.product(0, axis), data[axis], data.product(axis + 1, data.rank()), c.num_elements(1)};
  }
};

}  // namespace treadle::ops
