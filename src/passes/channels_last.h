// Orders of axes. ONNX images have channels second (NCHW); in channels-last layout they are last (NHWC).
#pragma once

#include <cstdint>
#include <vector>

#include "treadle/tensor.h"

namespace treadle::passes {

using Ints = std::vector<int64_t>;

/// Returns the permutation that moves the channels from second to last: 0, 2, 3, 1.
Ints channels_last_order(int rank);
/// Returns the permutation that moves the channels back: 0, 3, 1, 2.
Ints channels_first_order(int rank);
/// Returns the position of an axis once the channels are last. @param axis  in [-rank, rank), with channels second
int64_t channels_last_axis(int64_t axis, int rank);
/// Returns a float32 constant with the channels last, after prepending extents of 1 up to `rank`.
Tensor channels_last_constant(const Tensor& constant, int rank);

template <typename T>
std::vector<T> permuted(const std::vector<T>& values, const Ints& order) {
  std::vector<T> result;
  for (int64_t i : order) result.push_back(values[static_cast<size_t>(i)]);
  return result;
}

}  // namespace treadle::passes
