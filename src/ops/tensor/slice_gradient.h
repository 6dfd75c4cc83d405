// The places of X that a Slice has read, which its gradient is for.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

struct SlicedPlaces {
  int64_t starts[kMaxRank], strides[kMaxRank];  // by axis of X

  /// @throws Error(invalid_argument) if the gradient, input 0, is of no slice of the output's shape
  static SlicedPlaces of(const BindContext& c);
};

}  // namespace treadle::ops
