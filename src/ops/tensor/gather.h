// Describes the data that a Gather reads: rows of `inner` elements; the axis has `extent` of them.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

struct GatherExtents {
  int64_t outer, extent, inner, num_indices;

  /// @param data  shape of the data that is read; for a gradient, it is the shape of the output
  static GatherExtents of(const BindContext& c, const Shape& data) {
    const int axis = c.axis("axis", 0, data.rank());
    return {data.product(0, axis), data[axis], data.product(axis + 1, data.rank()), c.num_elements(1)};
  }
};

}  // namespace treadle::ops
