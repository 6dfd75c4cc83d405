// Checks that operators over regions of an image share.
#pragma once

#include <fmt/format.h>

#include "graph/infer.h"
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

}  // namespace treadle::ops
