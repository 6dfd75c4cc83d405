#include "kernels/image/grid_sample.h"

#include <algorithm>
#include <cmath>

#include "kernels/image/squares.h"

namespace treadle::kernels {
namespace {

constexpr int kMaxTaps = 4;

/// The inputs along one axis that contribute to a point; an input with index -1 contributes 0.
template <typename T>
struct AxisTaps {
  int count = 0;
  int64_t index[kMaxTaps];
  T weight[kMaxTaps];
};

// Reflects x at the borders low and high until it is between them.
template <typename T>
T reflect(T x, T low, T high) {
  const T range = high - low;
  if (!(range > 0)) return low;
  const bool below = x < low;
  if (!below && !(x > high)) return x;
  const T distance = below ? low - x : x - high;
  const T times = std::floor(distance / range), rest = distance - times * range;
  const bool even = std::fmod(times, T{2}) == 0;
  return below == even ? low + rest : high - rest;
}

template <typename T>
struct Axis {
  int64_t extent;
  T low, high;  // the borders at which positions are reflected
  GridPadding padding;

  Axis(const GridSampleParams& p, int axis)
      : extent(p.in[axis]),
        low(p.align_corners ? T{0} : T{-0.5}),
        high(p.align_corners ? static_cast<T>(extent - 1) : static_cast<T>(extent) - T{0.5}),
        padding(p.padding) {}

  T last() const { return static_cast<T>(extent - 1); }
  // Returns the derivative of the padded position with respect to the position x: 1 inside the image or with zero padding, 0 beyond the
  // image with border padding, 1 or -1 with reflection.
  T pad_slope(T x) const {
    if (!(x < low || x > high)) return 1;
    if (padding == GridPadding::border) return 0;
    if (padding == GridPadding::zeros) return 1;
    const T range = high - low;
    if (!(range > 0)) return 0;
    const bool below = x < low, even = std::fmod(std::floor((below ? low - x : x - high) / range), T{2}) == 0;
    return (below == even) == below ? T{-1} : T{1};
  }
  T pad(T x) const {
    if (!(x < low || x > high)) return x;
    if (padding == GridPadding::border) return std::clamp(x, T{0}, last());
    if (padding == GridPadding::reflection) return reflect(x, low, high);
    return x;
  }
  int64_t index(int64_t i) const {
    if (i >= 0 && i < extent) return i;
    if (padding == GridPadding::zeros) return -1;
    if (padding == GridPadding::reflection) i = static_cast<int64_t>(reflect(static_cast<T>(i), low, high));
    return std::clamp<int64_t>(i, 0, extent - 1);
  }
};

/// Converts a normalized coordinate in [-1, 1] to a position in elements.
template <typename T>
T place_in(const GridSampleParams& p, int64_t elements, T place) {
  const T extent = static_cast<T>(elements);
  return p.align_corners ? (place + 1) / 2 * (extent - 1) : ((place + 1) * extent - 1) / 2;
}

/// Returns the taps of one axis. @param slope  receives derivatives of the weights by the coordinate, kMaxTaps values; may be null
template <typename T>
AxisTaps<T> taps_at(const GridSampleParams& p, const Axis<T>& axis, T place, T* slope = nullptr) {
  const T extent = static_cast<T>(axis.extent);
  T x = place_in(p, axis.extent, place);
  if (p.mode == GridMode::nearest) x = std::nearbyint(x);
  // The clamp makes conversions to integers defined, also for NaN. It does not change results, as points so far outside all give the same.
  constexpr T kFar = kFarPlace;
  x = x > -kFar ? std::min(x, kFar) : -kFar;
  // Cubic filters apply padding to each tap, as in PyTorch; other filters apply it to the position.
  T speed = p.align_corners ? (extent - 1) / 2 : extent / 2;
  if (p.mode != GridMode::cubic) {
    speed *= axis.pad_slope(x);
    x = axis.pad(x);
  }
  AxisTaps<T> taps;
  int64_t floor = static_cast<int64_t>(x);  // the conversion truncates; std::floor would be a function call
  if (x < static_cast<T>(floor)) --floor;
  const T t = x - static_cast<T>(floor);
  auto add = [&](int64_t i, T weight) {
    taps.index[taps.count] = axis.index(i);
    taps.weight[taps.count++] = weight;
  };
  if (p.mode == GridMode::nearest) {
    add(static_cast<int64_t>(x), 1);
    if (slope) slope[0] = 0;
  } else if (p.mode == GridMode::linear) {
    add(floor, 1 - t), add(floor + 1, t);
    if (slope) slope[0] = -speed, slope[1] = speed;
  } else {
    // Cubic interpolation by Keys 1981 with a = -3/4, as in PyTorch.
    constexpr T a = T{-0.75};
    auto far = [](T d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
    auto near = [](T d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
    add(floor - 1, far(t + 1)), add(floor, near(t)), add(floor + 1, near(1 - t)), add(floor + 2, far(2 - t));
    if (slope) {
      auto far_slope = [](T d) { return (3 * a * d - 10 * a) * d + 8 * a; };
      auto near_slope = [](T d) { return (3 * (a + 2) * d - 2 * (a + 3)) * d; };
      slope[0] = speed * far_slope(t + 1), slope[1] = speed * near_slope(t);
      slope[2] = -speed * near_slope(1 - t), slope[3] = -speed * far_slope(2 - t);
    }
  }
  return taps;
}

/// The inputs and weights of a point over all axes. They are the same for every channel.
template <typename T>
struct PointTaps {
  static constexpr int kMost = kMaxTaps * kMaxTaps * kMaxTaps;
  int count;
  int64_t offset[kMost];
  T weight[kMost];
};

/// Combines the taps of all axes. @param place  coordinates of the point, innermost axis first
template <typename T>
void taps_of_point(const GridSampleParams& p, const T* place, PointTaps<T>& all) {
  all.count = 1, all.offset[0] = 0, all.weight[0] = 1;
  for (int i = 0; i < p.rank; ++i) {
    const AxisTaps<T> taps = taps_at(p, Axis<T>(p, i), place[p.rank - 1 - i]);
    int64_t offsets[PointTaps<T>::kMost];
    T weights[PointTaps<T>::kMost];
    const int before = all.count;
    std::copy_n(all.offset, before, offsets);
    std::copy_n(all.weight, before, weights);
    all.count = 0;
    for (int have = 0; have < before; ++have) {
      for (int k = 0; k < taps.count; ++k) {
        if (taps.index[k] < 0) continue;
        all.offset[all.count] = offsets[have] * p.in[i] + taps.index[k];
        all.weight[all.count++] = weights[have] * taps.weight[k];
      }
    }
  }
}

}  // namespace

namespace {

constexpr int64_t kPoints = SampledSquares<float>::kPoints;  // number of points per block; a block's results for one channel are contiguous

/// The inputs that a block of points reads. With two linear axes, a point reads a 2 x 2 square, except at borders. At a border it may read
/// an input twice; if both weights were combined, 0 * Inf would no longer give NaN.
template <typename T>
struct BlockTaps {
  SampledSquares<T> squares;
  int num_others = 0;
  int other[kPoints];
  PointTaps<T> taps[kPoints];  // taps of the points in `other`

  static bool are_squares(const GridSampleParams& p) { return p.rank == 2 && p.mode == GridMode::linear && p.in[0] >= 2 && p.in[1] >= 2; }

  void read_squares(const GridSampleParams& p, const T* grid, int64_t count) {
    const Axis<T> down(p, 0), across(p, 1);
    num_others = 0;
    if (p.padding == GridPadding::zeros) {
      T rows[kPoints] = {}, columns[kPoints] = {};
      for (int64_t i = 0; i < count; ++i)
        rows[i] = place_in(p, down.extent, grid[2 * i + 1]), columns[i] = place_in(p, across.extent, grid[2 * i]);
      return find_squares(down.extent, across.extent, rows, columns, squares);
    }
    squares = {};  // unused points of the block read no input
    for (int64_t i = 0; i < count; ++i) {
      const AxisTaps<T> row = taps_at(p, down, grid[2 * i + 1]), column = taps_at(p, across, grid[2 * i]);
      if (row.index[1] != row.index[0] + 1 || column.index[1] != column.index[0] + 1) {
        other[num_others] = static_cast<int>(i);
        taps_of_point(p, grid + 2 * i, taps[num_others++]);
        continue;
      }
      squares.offset[i] = row.index[0] * p.in[1] + column.index[0];
      for (int k = 0; k < 4; ++k) squares.weight[i][k] = row.weight[k / 2] * column.weight[k % 2], squares.taken[i][k] = -1;
    }
  }
  void read_others(const GridSampleParams& p, const T* grid, int64_t count) {
    num_others = static_cast<int>(count);
    for (int i = 0; i < num_others; ++i) {
      other[i] = i;
      taps_of_point(p, grid + i * p.rank, taps[i]);
    }
  }
};

template <typename T>
T sample_one(const PointTaps<T>& taps, const T* src) {
  T sum = 0;
  for (int k = 0; k < taps.count; ++k) sum += src[taps.offset[k]] * taps.weight[k];
  return sum;
}

}  // namespace

template <typename T>
void grid_sample(const GridSampleParams& p, const T* x, const T* grid, T* y, ThreadPool* pool) {
  int64_t plane = 1;
  for (int i = 0; i < p.rank; ++i) plane *= p.in[i];
  const bool in_squares = BlockTaps<T>::are_squares(p);
  const int64_t blocks = (p.points + kPoints - 1) / kPoints;
  const int64_t grain = std::max<int64_t>(1, 4096 / kPoints / std::max<int64_t>(1, p.C));
  parallel_for(pool, p.N * blocks, grain, [&](int64_t begin, int64_t end) {
    BlockTaps<T> taps;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t n = block / blocks, first = block % blocks * kPoints, count = std::min(kPoints, p.points - first);
      const T* places = grid + (n * p.points + first) * p.rank;
      if (in_squares)
        taps.read_squares(p, places, count);
      else
        taps.read_others(p, places, count);
      for (int64_t c = 0; c < p.C; ++c) {
        const T* src = x + (n * p.C + c) * plane;
        T* dst = y + (n * p.C + c) * p.points + first;
        if (in_squares && count == kPoints) {
          sample_squares(taps.squares, src, p.in[1], dst);
        } else if (in_squares) {
          T room[kPoints];
          sample_squares(taps.squares, src, p.in[1], room);
          std::copy_n(room, count, dst);
        }
        for (int i = 0; i < taps.num_others; ++i) dst[taps.other[i]] = sample_one(taps.taps[i], src);
      }
    }
  });
}

namespace {

/// The inputs and weights of a point, and the derivatives of the weights with respect to its coordinates.
template <typename T>
struct SlopedTaps {
  int count = 1;
  int64_t offset[PointTaps<T>::kMost] = {};
  T weight[PointTaps<T>::kMost];
  T slope[GridSampleParams::kMaxRank][PointTaps<T>::kMost];  // slopes by axis, outermost first
};

template <typename T>
void sloped_taps_of_point(const GridSampleParams& p, const T* place, SlopedTaps<T>& all) {
  all.count = 1, all.offset[0] = 0, all.weight[0] = 1;
  for (int axis = 0; axis < p.rank; ++axis) all.slope[axis][0] = 1;
  for (int i = 0; i < p.rank; ++i) {
    T slope[kMaxTaps];
    const AxisTaps<T> taps = taps_at(p, Axis<T>(p, i), place[p.rank - 1 - i], slope);
    const SlopedTaps<T> before = all;
    all.count = 0;
    for (int have = 0; have < before.count; ++have) {
      for (int k = 0; k < taps.count; ++k) {
        if (taps.index[k] < 0) continue;
        all.offset[all.count] = before.offset[have] * p.in[i] + taps.index[k];
        all.weight[all.count] = before.weight[have] * taps.weight[k];
        for (int axis = 0; axis < p.rank; ++axis)
          all.slope[axis][all.count] = before.slope[axis][have] * (axis == i ? slope[k] : taps.weight[k]);
        ++all.count;
      }
    }
  }
}

}  // namespace

template <typename T>
void grid_sample_gradient(const GridSampleParams& p, const T* x, const T* grid, const T* dy, T* dx, T* dgrid, ThreadPool* pool) {
  int64_t plane = 1;
  for (int i = 0; i < p.rank; ++i) plane *= p.in[i];
  parallel_for(pool, p.N, 1, [&](int64_t begin, int64_t end) {
    SlopedTaps<T> taps;
    for (int64_t n = begin; n < end; ++n) {
      if (dx) std::fill_n(dx + n * p.C * plane, p.C * plane, T{0});
      for (int64_t point = 0; point < p.points; ++point) {
        const int64_t at = (n * p.points + point) * p.rank;
        sloped_taps_of_point(p, grid + at, taps);
        T by_axis[GridSampleParams::kMaxRank] = {};
        for (int64_t c = 0; c < p.C; ++c) {
          const T flow = dy[(n * p.C + c) * p.points + point];
          const int64_t image = (n * p.C + c) * plane;
          for (int k = 0; dx && k < taps.count; ++k) dx[image + taps.offset[k]] += flow * taps.weight[k];
          for (int axis = 0; axis < p.rank; ++axis) {
            T sum = 0;
            for (int k = 0; k < taps.count; ++k) sum += x[image + taps.offset[k]] * taps.slope[axis][k];
            by_axis[axis] += flow * sum;
          }
        }
        for (int axis = 0; dgrid && axis < p.rank; ++axis) dgrid[at + p.rank - 1 - axis] = by_axis[axis];
      }
    }
  });
}

template <typename T>
void affine_grid(int64_t N, int rank, const int64_t* out, bool align_corners, const T* theta, T* grid, ThreadPool* pool) {
  int64_t points = 1;
  for (int i = 0; i < rank; ++i) points *= out[i];
  parallel_for(pool, N * points, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const T* map = theta + at / points * rank * (rank + 1);
      int64_t rest = at % points;
      T place[GridSampleParams::kMaxRank];  // coordinates by axis, innermost first
      for (int i = rank - 1; i >= 0; --i) {
        const T extent = static_cast<T>(out[i]), index = static_cast<T>(rest % out[i]);
        rest /= out[i];
        place[rank - 1 - i] = !align_corners ? (2 * index + 1) / extent - 1 : out[i] > 1 ? 2 * index / (extent - 1) - 1 : T{-1};
      }
      for (int r = 0; r < rank; ++r, map += rank + 1) {
        T sum = map[rank];
        for (int i = 0; i < rank; ++i) sum += map[i] * place[i];
        grid[at * rank + r] = sum;
      }
    }
  });
}

template void grid_sample(const GridSampleParams&, const float*, const float*, float*, ThreadPool*);
template void grid_sample(const GridSampleParams&, const double*, const double*, double*, ThreadPool*);
template void grid_sample_gradient(const GridSampleParams&, const float*, const float*, const float*, float*, float*, ThreadPool*);
template void grid_sample_gradient(const GridSampleParams&, const double*, const double*, const double*, double*, double*, ThreadPool*);
template void affine_grid(int64_t, int, const int64_t*, bool, const float*, float*, ThreadPool*);
template void affine_grid(int64_t, int, const int64_t*, bool, const double*, double*, ThreadPool*);

}  // namespace treadle::kernels
