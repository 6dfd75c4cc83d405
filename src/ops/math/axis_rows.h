// Describes a tensor along one axis as [outer, length, inner]. Parallel loops take tiles of neighboring columns of `inner`, which they read
// row by row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/threads/thread_pool.h"
#include "treadle/shape.h"

namespace treadle {
class BindContext;
}

namespace treadle::ops {

struct AxisRows {
  int64_t outer = 1, length = 1, inner = 1;

  static AxisRows of(const Shape& shape, int axis) { return {shape.product(0, axis), shape[axis], shape.product(axis + 1, shape.rank())}; }

  static constexpr int64_t kTile = 64;

  /// Divides the tensor into tiles of at most kTile columns and calls fn(offset, columns) for each in parallel. In a tile, element i of
  /// column j is at offset + i * inner + j.
  template <typename Fn>
  void for_each_tile(ThreadPool* pool, Fn&& fn) const {
    int64_t tiles_per_row = (inner + kTile - 1) / kTile;
    int64_t work_per_tile = std::max<int64_t>(1, length * std::min(inner, kTile));
    parallel_for(pool, outer * tiles_per_row, std::max<int64_t>(1, 16384 / work_per_tile), [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) {
        int64_t first = tile % tiles_per_row * kTile;
        fn(tile / tiles_per_row * length * inner + first, std::min(kTile, inner - first));
      }
    });
  }
};

/// Returns the [outer, length, inner] form of a CumSum or CumProd. @throws Error(invalid_argument) if the axis is not a single number
AxisRows cumulative_rows(const BindContext& c);

/// Returns the [outer, length, inner] form of an ArgMax or ArgMin. @throws Error(invalid_argument) if the axis is empty
AxisRows arg_extreme_rows(const BindContext& c);

}  // namespace treadle::ops
