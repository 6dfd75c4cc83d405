// Derives what kernels of every device need to compute GridSample and AffineGrid nodes.
#pragma once

#include "graph/kernel.h"
#include "kernels/image/grid_sample.h"

namespace treadle::ops {

/// @throws Error(invalid_argument) if operands or attributes are inconsistent
kernels::GridSampleParams bind_grid_sample(const BindContext& c);

struct AffineGridPlan {
  int64_t N, extents[3] = {1, 1, 1};  ///< the last `rank` extents are the image's
  int rank;
  bool align_corners;

  /// @throws Error(invalid_argument) if theta does not have the maps of N images
  static AffineGridPlan bind(const BindContext& c);
};

}  // namespace treadle::ops
