// Orders of axes: channels second, as ONNX has them, and last.
#pragma once

#include <cstdint>
#include <vector>

#include "treadle/tensor.h"

namespace treadle::passes {

using Ints = std::vector<int64_t>;

/// The permutation that moves the channels last: 0, 2, 3, 1.
Ints channels_last_order(int rank);
/// And back: 0, 3, 1, 2.
Ints channels_first_order(int rank);
/// Where axis `axis` in [-rank, rank) of a value with the channels second is when they are last.
int64_t channels_last_axis(int64_t axis, int rank);
/// A float32 constant, extents of 1 put before it up to `rank`, with the channels last.
Tensor channels_last_constant(const Tensor& constant, int rank);

template <typename T>
std::vector<T> permuted(const std::vector<T>& values, const Ints& order) {
  std::vector<T> result;
  for (int64_t i : order) result.push_back(values[static_cast<size_t>(i)]);
  return result;
}

}  // namespace treadle::passes
