#include "kernels/image/grid_sample.h"

#include <algorithm>
#include <cmath>

namespace treadle::kernels {
namespace {

constexpr int kMaxTaps = 4;

/// The inputs along one axis that a point takes, -1 for those that count as 0.
template <typename T>
struct AxisTaps {
  int count = 0;
  int64_t index[kMaxTaps];
  T weight[kMaxTaps];
};

// Folds x back at the borders until it is inside.
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
  T low, high;  // borders of reflection
  GridPadding padding;

  Axis(const GridSampleParams& p, int axis)
      : extent(p.in[axis]),
        low(p.align_corners ? T{0} : T{-0.5}),
        high(p.align_corners ? static_cast<T>(extent - 1) : static_cast<T>(extent) - T{0.5}),
        padding(p.padding) {}

  T last() const { return static_cast<T>(extent - 1); }
  // A place outside is moved inside, unless what lies outside is 0.
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

template <typename T>
AxisTaps<T> taps_at(const GridSampleParams& p, const Axis<T>& axis, T place) {
  const T extent = static_cast<T>(axis.extent);
  T x = p.align_corners ? (place + 1) / 2 * (extent - 1) : ((place + 1) * extent - 1) / 2;
  if (p.mode == GridMode::nearest) x = std::nearbyint(x);
  // Far outside is far outside; this keeps the conversions to integers defined, for NaN too.
  constexpr T kFar = 1e9;
  x = x > -kFar ? std::min(x, kFar) : -kFar;
  // A cubic filter looks beyond the border from where it stands, as in PyTorch; the others move inside first.
  if (p.mode != GridMode::cubic) x = axis.pad(x);
  AxisTaps<T> taps;
  int64_t floor = static_cast<int64_t>(x);  // towards zero, and without the call that std::floor is
  if (x < static_cast<T>(floor)) --floor;
  const T t = x - static_cast<T>(floor);
  auto add = [&](int64_t i, T weight) {
    taps.index[taps.count] = axis.index(i);
    taps.weight[taps.count++] = weight;
  };
  if (p.mode == GridMode::nearest) {
    add(static_cast<int64_t>(x), 1);
  } else if (p.mode == GridMode::linear) {
    add(floor, 1 - t), add(floor + 1, t);
  } else {
    // Keys 1981 with a = -3/4, as in PyTorch.
    constexpr T a = T{-0.75};
    auto far = [](T d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
    auto near = [](T d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
    add(floor - 1, far(t + 1)), add(floor, near(t)), add(floor + 1, near(1 - t)), add(floor + 2, far(2 - t));
  }
  return taps;
}

/// The inputs that a point takes along all axes, the same for every channel.
template <typename T>
struct PointTaps {
  static constexpr int kMost = kMaxTaps * kMaxTaps * kMaxTaps;
  int count;
  int64_t offset[kMost];
  T weight[kMost];
};

/// @param place  innermost axis first
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

template <typename T>
void grid_sample(const GridSampleParams& p, const T* x, const T* grid, T* y, ThreadPool* pool) {
  int64_t plane = 1;
  for (int i = 0; i < p.rank; ++i) plane *= p.in[i];
  // A few points at a time, channel by channel: their results lie side by side.
  constexpr int64_t kPoints = 16;
  const int64_t blocks = (p.points + kPoints - 1) / kPoints;
  const int64_t grain = std::max<int64_t>(1, 4096 / kPoints / std::max<int64_t>(1, p.C));
  parallel_for(pool, p.N * blocks, grain, [&](int64_t begin, int64_t end) {
    PointTaps<T> points[kPoints];
    for (int64_t block = begin; block < end; ++block) {
      const int64_t n = block / blocks, first = block % blocks * kPoints, count = std::min(kPoints, p.points - first);
      bool four = true;  // of two linear axes, and all inside
      for (int64_t i = 0; i < count; ++i) {
        taps_of_point(p, grid + (n * p.points + first + i) * p.rank, points[i]);
        four &= points[i].count == 4;
      }
      for (int64_t c = 0; c < p.C; ++c) {
        const T* src = x + (n * p.C + c) * plane;
        T* dst = y + (n * p.C + c) * p.points + first;
        for (int64_t i = 0; i < count; ++i) {
          const int64_t* at = points[i].offset;
          const T* weight = points[i].weight;
          T sum = 0;
          if (four) {
            for (int k = 0; k < 4; ++k) sum += src[at[k]] * weight[k];
          } else {
            for (int k = 0; k < points[i].count; ++k) sum += src[at[k]] * weight[k];
          }
          dst[i] = sum;
        }
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
      T place[GridSampleParams::kMaxRank];  // innermost axis first
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
template void affine_grid(int64_t, int, const int64_t*, bool, const float*, float*, ThreadPool*);
template void affine_grid(int64_t, int, const int64_t*, bool, const double*, double*, ThreadPool*);

}  // namespace treadle::kernels
