// Maps the elements of a QuantizeLinear or DequantizeLinear to scales, for kernels of every device.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

/// One scale for all elements, one per index along an axis, or one per block along an axis.
struct QuantizedAxis {
  /// Elements of the tensor; extent of the axis; elements per index; number of indices that share a scale.
  int64_t total = 0, extent = 1, inner = 1, block = 1;
  int64_t outer_step = 0, axis_step = 0, inner_step = 0;  ///< strides in the tensor of scales

  /// @throws Error(invalid_argument) if scales do not fit the input, or zero points the scales
  static QuantizedAxis bind(const BindContext& c);
  int64_t blocks() const { return extent / block + (extent % block != 0); }
};

}  // namespace treadle::ops
