// The elements that nodes of a training step update, for kernels of every device.
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

/// Returns the number of elements of a state that an AccumulateGradient, AverageParameter or Assign updates.
/// @throws Error(invalid_argument) if the operands are of different shapes
int64_t bind_state_update(const BindContext& c);

/// Returns the number of elements of an UnscaleGradient. @throws Error(invalid_argument) if scale or loss are not one number
int64_t bind_unscale(const BindContext& c);

}  // namespace treadle::ops
