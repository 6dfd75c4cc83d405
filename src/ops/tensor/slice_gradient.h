// Finds the places of X that a Slice has read, for its gradient.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

struct SlicedPlaces {
  int64_t starts[kMaxRank], strides[kMaxRank];  // for each axis of X

  /// Returns the places. @throws Error(invalid_argument) if the gradient, input 0, does not have the shape of such a slice
  static SlicedPlaces of(const BindContext& c);
};

}  // namespace treadle::ops
