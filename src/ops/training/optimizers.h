// The elements that an optimizer node updates. Kernels of all devices use this.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

/// The elements of X that an update changes: all elements or, if lazy, the rows that have a gradient. The row indices are in ascending
/// order; the index -1 marks unused rows at the end.
struct UpdatedElements {
  int64_t n;  ///< number of elements of X
  int num_states;
  bool lazy = false;
  int64_t rows = 0, width = 0, extent = 0;  ///< if lazy: rows and width of G, and number of rows of X

  /// @throws Error(invalid_argument) if R or T does not have exactly one element, or if a tensor lacks the dtype and shape of X
  static UpdatedElements bind(const BindContext& c, int num_states);
};

}  // namespace treadle::ops
