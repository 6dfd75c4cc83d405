// Finds the positions in X that a Slice has read. The gradient of Slice uses them.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

struct SlicedPlaces {
  int64_t starts[kMaxRank], strides[kMaxRank];  // one element per axis of X

  /// Returns the positions in X that the forward Slice has read.
  /// @throws Error(invalid_argument) if input 0, the gradient, does not have the shape of the slice that the other inputs describe
  static SlicedPlaces of(const BindContext& c);
};

}  // namespace treadle::ops
