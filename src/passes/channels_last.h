// Orders of axes. In ONNX, channels are the second axis of an image (NCHW); in channels-last layout they are the last axis (NHWC).
#pragma once

#include <cstdint>
#include <vector>

#include "treadle/tensor.h"

namespace treadle::passes {

using Ints = std::vector<int64_t>;

/// Returns the permutation that moves the channels from second to last place; for rank 4: 0, 2, 3, 1.
Ints channels_last_order(int rank);
/// Returns the permutation that moves the channels from last to second place; for rank 4: 0, 3, 1, 2.
Ints channels_first_order(int rank);
/// Returns the index of an axis in channels-last layout. @param axis  index in ONNX's layout, in [-rank, rank)
int64_t channels_last_axis(int64_t axis, int rank);
/// Returns a float32 constant in channels-last layout, after padding its shape with leading extents of 1 to `rank` axes.
Tensor channels_last_constant(const Tensor& constant, int rank);

template <typename T>
std::vector<T> permuted(const std::vector<T>& values, const Ints& order) {
  std::vector<T> result;
  for (int64_t i : order) result.push_back(values[static_cast<size_t>(i)]);
  return result;
}

}  // namespace treadle::passes
