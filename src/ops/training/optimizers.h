// The elements that an optimizer's node updates, for kernels of every device.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

/// The elements of X that an update changes: all elements, or the rows that have a gradient. Row indices ascend; -1 marks unused rows at
/// the end.
struct UpdatedElements {
  int64_t n;  ///< number of elements of X
  int num_states;
  bool lazy = false;
  int64_t rows = 0, width = 0, extent = 0;  ///< rows and width of G, and number of rows of X; only if lazy

  /// @throws Error(invalid_argument) if R or T has not one element, or if the tensors do not have the dtype and shape of X
  static UpdatedElements bind(const BindContext& c, int num_states);
};

}  // namespace treadle::ops
