// GridSample: samples images at arbitrary positions. T is float or double.
#pragma once

#include <cstdint>

#include "core/threads/thread_pool.h"

namespace treadle::kernels {

enum class GridMode : uint8_t { nearest, linear, cubic };
enum class GridPadding : uint8_t { zeros, border, reflection };

struct GridSampleParams {
  static constexpr int kMaxRank = 3;
  int64_t N = 1, C = 1;
  int rank = 2;                      ///< number of spatial axes
  int64_t in[kMaxRank] = {1, 1, 1};  ///< extents of the image, outermost first
  int64_t points = 0;                ///< number of sampled points per image
  GridMode mode = GridMode::linear;
  GridPadding padding = GridPadding::zeros;
  bool align_corners = false;
};

/// Computes y[N, C, points] from x[N, C, in]. grid[N, points, rank] contains coordinates in [-1, 1], innermost axis first.
template <typename T>
void grid_sample(const GridSampleParams& params, const T* x, const T* grid, T* y, ThreadPool* pool);

/// Computes dx and dgrid, with the shapes of x and grid, from dy[N, C, points]. Either may be null.
template <typename T>
void grid_sample_gradient(const GridSampleParams& params, const T* x, const T* grid, const T* dy, T* dx, T* dgrid, ThreadPool* pool);

/// Computes grid[N, out, rank]: the points of a regular grid, transformed by the affine maps theta[N, rank, rank + 1].
template <typename T>
void affine_grid(int64_t N, int rank, const int64_t* out, bool align_corners, const T* theta, T* grid, ThreadPool* pool);

}  // namespace treadle::kernels
