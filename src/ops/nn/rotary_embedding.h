// Derives the parameters of RotaryEmbedding from a node's operands and attributes. The kernels of all devices use them.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

struct RotaryEmbeddingPlan {
  int64_t batch, heads, length, size;
  int64_t rotated;                                ///< number of features that are rotated, at the start of a head
  int64_t positions;                              ///< number of rows of the caches, if the node has position ids
  int64_t batch_stride, head_stride, row_stride;  ///< strides of X and Y
  bool interleaved, has_positions;

  /// @throws Error(invalid_argument) if the shapes of the operands are inconsistent
  static RotaryEmbeddingPlan bind(const BindContext& c);
};

}  // namespace treadle::ops
