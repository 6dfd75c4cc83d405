// Derives what kernels of every device need to compute a Col2Im node.
#pragma once

#include "graph/kernel.h"

namespace treadle::ops {

/// The image and its blocks. Block b covers the elements b * stride + k * dilation - pad of an axis, for k in [0, block).
struct Col2ImPlan {
  int rank;
  int64_t planes, image_size, block_size, num_blocks;
  int64_t image[kMaxRank], block[kMaxRank], grid[kMaxRank], strides[kMaxRank], pads[kMaxRank], dilations[kMaxRank];

  /// @param columns, output  shapes of the columns and of the image
  /// @throws Error(invalid_argument) if operands or attributes do not fit
  static Col2ImPlan bind(const BindContext& c, const Shape& columns, const Shape& output);
};

}  // namespace treadle::ops
