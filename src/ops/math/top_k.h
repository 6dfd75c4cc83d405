// Computes the extents of a TopK. Kernels of all devices use them.
#pragma once

#include <fmt/format.h>

#include "graph/kernel.h"
#include "treadle/error.h"

namespace treadle::ops {

/// The input seen as [outer, extent, inner]. TopK selects `k` elements along the middle axis.
struct TopKRows {
  int64_t outer = 1, extent = 1, inner = 1, k = 0;

  static TopKRows bind(const BindContext& c) {
    const Shape& in = c.shape(0);
    const int axis = c.axis("axis", -1, in.rank());
    const TopKRows rows{in.product(0, axis), in[axis], in.product(axis + 1, in.rank()), c.value_at(1, 0)};
    if (rows.k < 0 || rows.k > rows.extent)
      throw Error(ErrorCode::invalid_argument, fmt::format("K = {} of the {} elements along axis {}", rows.k, rows.extent, axis));
    return rows;
  }
};

}  // namespace treadle::ops
