// The call that a RotaryEmbedding node describes, for kernels of every device.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

struct RotaryEmbeddingPlan {
  int64_t batch, heads, length, size;
  int64_t rotated;                                ///< number of features of a head that are rotated; these are the first ones
  int64_t positions;                              ///< number of rows of the caches, for nodes with positions
  int64_t batch_stride, head_stride, row_stride;  ///< strides of X and Y
  bool interleaved, has_positions;

  /// @throws Error(invalid_argument) if the operands' shapes do not fit together
  static RotaryEmbeddingPlan bind(const BindContext& c);
};

}  // namespace treadle::ops
