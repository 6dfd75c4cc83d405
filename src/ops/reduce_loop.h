// The loops of the Reduce operators: any set of axes, any reduction that can be split and joined.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/float_types.h"
#include "core/thread_pool.h"
#include "treadle/shape.h"

namespace treadle::ops {

/// A tensor's axes parted into kept and reduced ones; neighbours of one kind are one axis. The innermost axis stands apart.
struct ReducePlan {
  struct Axes {
    int rank = 0;
    int64_t size = 1;
    std::array<int64_t, kMaxRank> extents{}, strides{};

    void push_back(int64_t extent, int64_t stride) {
      extents[static_cast<size_t>(rank)] = extent;
      strides[static_cast<size_t>(rank++)] = stride;
      size *= extent;
    }
    /// Offset of the element at `index` in row-major order.
    int64_t offset(int64_t index) const {
      int64_t result = 0;
      for (auto axis = static_cast<size_t>(rank); axis-- > 0; index /= extents[axis]) result += index % extents[axis] * strides[axis];
      return result;
    }
  };
  Axes kept, reduced;  // without the innermost axis
  int64_t inner = 1;
  bool inner_reduced = false;
  int64_t count = 1;  // elements per output

  static ReducePlan make(const Shape& shape, const std::array<bool, kMaxRank>& is_reduced) {
    ReducePlan plan;
    std::array<int64_t, kMaxRank> extents{};
    std::array<bool, kMaxRank> kinds{};
    size_t rank = 0;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (shape[axis] == 1) continue;
      bool kind = is_reduced[static_cast<size_t>(axis)];
      if (rank > 0 && kinds[rank - 1] == kind) {
        extents[rank - 1] *= shape[axis];
      } else {
        extents[rank] = shape[axis];
        kinds[rank++] = kind;
      }
    }
    if (rank == 0) return plan;
    plan.inner = extents[rank - 1];
    plan.inner_reduced = kinds[rank - 1];
    int64_t stride = 1;
    std::array<int64_t, kMaxRank> strides{};
    for (size_t axis = rank; axis-- > 0; stride *= extents[axis]) strides[axis] = stride;
    for (size_t axis = 0; axis + 1 < rank; ++axis) (kinds[axis] ? plan.reduced : plan.kept).push_back(extents[axis], strides[axis]);
    plan.count = plan.reduced.size * (plan.inner_reduced ? plan.inner : 1);
    return plan;
  }
};

/// Reduces by R, which has
///   Acc start() const;  Acc step(Acc, C element) const;  Acc join(Acc, Acc) const;  T finish(Acc, int64_t count) const;
/// Partial results are joined every kBlock elements, so that the rounding of long float sums does not grow with their length.
template <typename R, typename T>
void reduce(const ReducePlan& plan, const R& r, const T* in, T* out, ThreadPool* pool) {
  using C = compute_type_t<T>;
  using Acc = decltype(r.start());
  constexpr int64_t kLanes = 16, kBlock = 2048, kTile = 64;
  if (plan.inner_reduced) {
    int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, plan.count));
    parallel_for(pool, plan.kept.size, grain, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const T* base = in + plan.kept.offset(k);
        Acc total = r.start();
        for (int64_t row = 0; row < plan.reduced.size; ++row) {
          const T* x = base + plan.reduced.offset(row);
          for (int64_t first = 0; first < plan.inner; first += kBlock) {
            int64_t last = std::min(first + kBlock, plan.inner), i = first;
            Acc lanes[kLanes];
            std::fill_n(lanes, kLanes, r.start());
            for (; i + kLanes <= last; i += kLanes)
              for (int64_t l = 0; l < kLanes; ++l) lanes[l] = r.step(lanes[l], static_cast<C>(x[i + l]));
            for (int64_t l = 0; i < last; ++i, ++l) lanes[l] = r.step(lanes[l], static_cast<C>(x[i]));
            Acc sum = lanes[0];
            for (int64_t l = 1; l < kLanes; ++l) sum = r.join(sum, lanes[l]);
            total = r.join(total, sum);
          }
        }
        out[k] = r.finish(total, plan.count);
      }
    });
    return;
  }
  // The innermost axis is kept: tiles of neighbouring outputs, fed row by row.
  int64_t tiles = (plan.inner + kTile - 1) / kTile;
  int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, plan.count * std::min(plan.inner, kTile)));
  parallel_for(pool, plan.kept.size * tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      int64_t column = tile % tiles * kTile, k = tile / tiles;
      int64_t columns = std::min(kTile, plan.inner - column);
      const T* base = in + plan.kept.offset(k) + column;
      Acc total[kTile], partial[kTile];
      std::fill_n(total, kTile, r.start());
      for (int64_t first = 0; first < plan.reduced.size; first += kBlock / 16) {
        int64_t last = std::min(first + kBlock / 16, plan.reduced.size);
        std::fill_n(partial, kTile, r.start());
        for (int64_t row = first; row < last; ++row) {
          const T* x = base + plan.reduced.offset(row);
          for (int64_t j = 0; j < columns; ++j) partial[j] = r.step(partial[j], static_cast<C>(x[j]));
        }
        for (int64_t j = 0; j < columns; ++j) total[j] = r.join(total[j], partial[j]);
      }
      T* y = out + k * plan.inner + column;
      for (int64_t j = 0; j < columns; ++j) y[j] = r.finish(total[j], plan.count);
    }
  });
}

}  // namespace treadle::ops
