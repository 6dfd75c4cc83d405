// Reads the operands of NonMaxSuppression. Kernels of all devices use this.
#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "graph/kernel.h"
#include "ops/checks.h"
#include "treadle/error.h"

namespace treadle::ops {

struct SuppressionPlan {
  int64_t batches = 0, classes = 0, boxes = 0;
  int64_t limit = 0;  ///< maximum number of boxes that are kept per image and class
  bool center = false;

  static SuppressionPlan bind(const BindContext& c) {
    check_equal(c.shape(0)[2], 4, "coordinates of a box, and four");
    check_equal(c.shape(0)[0], c.shape(1)[0], "batches of boxes and scores");
    check_equal(c.shape(0)[1], c.shape(1)[2], "boxes of boxes and scores");
    for (const int i : {2, 3, 4})
      if (c.has_input(i)) check_equal(c.num_elements(i), 1, "elements of a limit or threshold, and 1");
    const int64_t boxes = c.shape(0)[1];
    if (boxes > INT32_MAX) throw Error(ErrorCode::not_implemented, fmt::format("{} boxes; at most {}", boxes, INT32_MAX));
    // The default of max_output_boxes_per_class is 0, which means that no box is kept.
    const int64_t limit = c.has_input(2) ? std::clamp<int64_t>(c.value_at(2, 0), 0, boxes) : 0;
    return {c.shape(0)[0], c.shape(1)[1], boxes, limit, c.get_int("center_point_box") != 0};
  }
};

}  // namespace treadle::ops
