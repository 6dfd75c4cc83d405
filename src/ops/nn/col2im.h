// Derives the parameters of Col2Im from a node's operands and attributes. The kernels of all devices use them.
#pragma once

#include "graph/kernel.h"

namespace treadle::ops {

/// The extents of the image and its blocks. Along an axis, block b covers the positions b * stride + k * dilation - pad for k in [0,
/// block).
struct Col2ImPlan {
  int rank;
  int64_t planes, image_size, block_size, num_blocks;
  int64_t image[kMaxRank], block[kMaxRank], grid[kMaxRank], strides[kMaxRank], pads[kMaxRank], dilations[kMaxRank];

  /// @param columns, output  shapes of the columns and of the image
  /// @throws Error(invalid_argument) if operands or attributes are inconsistent
  static Col2ImPlan bind(const BindContext& c, const Shape& columns, const Shape& output);
};

}  // namespace treadle::ops
