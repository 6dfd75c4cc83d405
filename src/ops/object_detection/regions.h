// Checks and extents that the operators over regions of an image have in common.
#pragma once

#include <fmt/format.h>

#include "graph/infer.h"
#include "graph/kernel.h"
#include "treadle/error.h"

namespace treadle::ops {

inline void check_image(const InferContext& c) {
  if (c.has_rank(0) && c.rank(0) != 4) throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {}, not 4", c.rank(0)));
  if (c.has_rank(1) && c.rank(1) != 2) throw Error(ErrorCode::invalid_argument, fmt::format("rois is of rank {}, not 2", c.rank(1)));
}

inline int64_t batch_index(int64_t index, int64_t batch) {
  if (index < 0 || index >= batch) throw Error(ErrorCode::invalid_argument, fmt::format("a region lies in image {} of {}", index, batch));
  return index;
}

/// The extents and attributes with which RoiAlign and MaxRoiPool compute.
struct RegionPlan {
  int64_t batch = 0, channels = 0, height = 0, width = 0, count = 0, out_height = 0, out_width = 0;
  float scale = 1;
  int64_t sampling_ratio = 0;  ///< the last three members are only for RoiAlign
  bool half_pixel = false, takes_maximum = false;

  /// @param y  shape of the output
  /// @throws Error(invalid_argument) if operands or attributes are inconsistent
  static RegionPlan of_align(const BindContext& c, const Shape& y);
  static RegionPlan of_max_pool(const BindContext& c, const Shape& y);
};

}  // namespace treadle::ops
