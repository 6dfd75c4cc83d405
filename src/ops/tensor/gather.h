// Describes Gather and its gradients for kernels of every device.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

/// The data that is read: rows of `inner` elements; the axis has `extent` of them.
struct GatherExtents {
  int64_t outer, extent, inner, num_indices;

  /// @param data  shape of the tensor that is read; for a gradient, this is the shape of the gradient's output
  static GatherExtents of(const BindContext& c, const Shape& data) {
    const int axis = c.axis("axis", 0, data.rank());
    return {data.product(0, axis), data[axis], data.product(axis + 1, data.rank()), c.num_elements(1)};
  }
  /// Describes an ArrayFeatureExtractor, which gathers along the last axis. @throws Error(invalid_argument) if X has no axis
  static GatherExtents of_features(const BindContext& c);
  /// @throws Error(invalid_argument) if input 0, the gradient, has another number of elements than were gathered
  static GatherExtents bind_gradient(const BindContext& c);
};

/// GatherGradRows: `count` indices of an axis of `extent` rows of `inner` elements. The outputs have room for `room` rows.
struct GatheredRowsPlan {
  int64_t extent, inner, count, room;
  bool wide_index;

  /// @throws Error(invalid_argument) if input 0, the gradient, has another number of elements than were gathered
  static GatheredRowsPlan bind(const BindContext& c);
};

}  // namespace treadle::ops
