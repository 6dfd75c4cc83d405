#include "kernels/image/resize.h"

#include <algorithm>
#include <cmath>

namespace treadle::kernels {
namespace {

constexpr int64_t kGrain = 16 * 1024;

bool leaves_input(const ResizeAxis& axis, Coordinates coordinates, double x) {
  // The negated comparison is also true for NaN.
  return coordinates == Coordinates::tf_crop_and_resize && !(x >= 0 && x <= static_cast<double>(axis.in - 1));
}

// Returns the unnormalized weight of an input at this distance from the sampled position.
double filter_weight(const ResizeOptions& options, double distance) {
  const double d = std::abs(distance);
  if (options.filter == Filter::linear) return std::max(0.0, 1 - d);
  // Cubic interpolation by Keys 1981, equation (4).
  const double a = options.cubic_a;
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  if (d < 2) return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  return 0;
}

double support(const ResizeOptions& options) { return options.filter == Filter::linear ? 1 : 2; }
// Returns the scale of the filter, which is below 1 (a wider filter) if antialiasing is on and the image shrinks.
double filter_scale(const ResizeAxis& axis, const ResizeOptions& options) { return options.antialias ? std::min(axis.scale, 1.0) : 1.0; }
int64_t first_tap(const ResizeAxis& axis, const ResizeOptions& options) {
  constexpr double kFar = 1e12;  // limits positions, as the scale of an empty axis may be 0
  return static_cast<int64_t>(std::max(-kFar, std::floor(-support(options) / filter_scale(axis, options)))) + 1;
}

}  // namespace

double resize_source(const ResizeAxis& axis, Coordinates coordinates, int64_t o) {
  const double at = static_cast<double>(o), in = static_cast<double>(axis.in), out = axis.scale * in;
  switch (coordinates) {
    case Coordinates::half_pixel: return (at + 0.5) / axis.scale - 0.5;
    case Coordinates::pytorch_half_pixel: return axis.out > 1 ? (at + 0.5) / axis.scale - 0.5 : 0;
    case Coordinates::half_pixel_symmetric: return in / 2 * (1 - static_cast<double>(axis.out) / out) + (at + 0.5) / axis.scale - 0.5;
    case Coordinates::align_corners: return out == 1 ? 0 : at * (in - 1) / (out - 1);
    case Coordinates::asymmetric: return at / axis.scale;
    case Coordinates::tf_half_pixel_for_nn: return (at + 0.5) / axis.scale;
    case Coordinates::tf_crop_and_resize: {
      const double size = axis.roi_end - axis.roi_begin;
      return axis.roi_begin * (in - 1) + (out == 1 ? size * (in - 1) / 2 : at * size * (in - 1) / (out - 1));
    }
  }
  return 0;
}

void resize_nearest_table(const ResizeAxis& axis, const ResizeOptions& options, int64_t* index) {
  for (int64_t o = 0; o < axis.out; ++o) {
    const double x = resize_source(axis, options.coordinates, o);
    if (leaves_input(axis, options.coordinates, x)) {
      index[o] = -1;
      continue;
    }
    double nearest = 0;
    switch (options.nearest) {
      case Nearest::round_prefer_floor: nearest = std::ceil(x - 0.5); break;
      case Nearest::round_prefer_ceil: nearest = std::floor(x + 0.5); break;
      case Nearest::floor: nearest = std::floor(x); break;
      case Nearest::ceil: nearest = std::ceil(x); break;
    }
    index[o] = static_cast<int64_t>(std::clamp(nearest, 0.0, static_cast<double>(axis.in - 1)));
  }
}

int resize_times(const int64_t* index, int64_t count) {
  const int64_t times = std::find_if(index, index + count, [&](int64_t from) { return from != index[0]; }) - index;
  if (times < 2 || times > 4 || count % times != 0) return 0;
  for (int64_t i = 0; i < count; ++i)
    if (index[i] != i / times) return 0;
  return static_cast<int>(times);
}

int64_t resize_taps(const ResizeAxis& axis, const ResizeOptions& options) { return 2 - 2 * first_tap(axis, options); }

template <typename T>
void resize_filter_table(const ResizeAxis& axis, const ResizeOptions& options, int64_t* index, T* weights) {
  const int64_t taps = resize_taps(axis, options), first = first_tap(axis, options);
  const double scale = filter_scale(axis, options);
  for (int64_t o = 0; o < axis.out; ++o, index += taps, weights += taps) {
    const double x = resize_source(axis, options.coordinates, o);
    if (leaves_input(axis, options.coordinates, x)) {
      index[0] = -1;
      continue;
    }
    // Clamps positions far outside, so that the conversion to an integer is defined. All their taps are the edge element anyway.
    const double limit = static_cast<double>(axis.in + taps), center = std::floor(std::clamp(x, -limit, limit));
    double sum = 0;
    for (int64_t k = 0; k < taps; ++k) {
      const int64_t i = static_cast<int64_t>(center) + first + k;
      double weight = filter_weight(options, (static_cast<double>(i) - x) * scale);
      if (options.exclude_outside && (i < 0 || i >= axis.in)) weight = 0;
      sum += weight;
      index[k] = std::clamp<int64_t>(i, 0, axis.in - 1);
      weights[k] = static_cast<T>(weight);
    }
    if ((options.antialias || options.exclude_outside) && sum != 0)
      for (int64_t k = 0; k < taps; ++k) weights[k] = static_cast<T>(static_cast<double>(weights[k]) / sum);
  }
}

namespace {

// Computes a row in which each element is a weighted sum of two elements of src.
template <typename T>
void mix_pairs(int64_t n, const int64_t* index, const T* weights, const T* src, T* dst) {
  for (int64_t o = 0; o < n; ++o) dst[o] = src[index[2 * o]] * weights[2 * o] + src[index[2 * o + 1]] * weights[2 * o + 1];
}

}  // namespace

template <typename T>
void resize_axis(int64_t outer, const ResizeAxis& axis, int64_t inner, int64_t taps, const int64_t* index, const T* weights,
                 T extrapolation, const T* x, T* y, ThreadPool* pool) {
  if (inner == 1) {
    // The resized axis is the innermost one, so the inputs of each element are gathered.
    bool leaves = false;
    for (int64_t o = 0; o < axis.out; ++o) leaves |= index[o * taps] < 0;
    parallel_for(pool, outer, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, axis.out * taps)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* src = x + row * axis.in;
        T* dst = y + row * axis.out;
        if (taps == 2 && !leaves) {
          mix_pairs(axis.out, index, weights, src, dst);
          continue;
        }
        for (int64_t o = 0; o < axis.out; ++o) {
          const int64_t* i = index + o * taps;
          const T* w = weights + o * taps;
          T sum = 0;
          if (i[0] < 0) {
            sum = extrapolation;
          } else {
            for (int64_t k = 0; k < taps; ++k) sum += src[i[k]] * w[k];
          }
          dst[o] = sum;
        }
      }
    });
    return;
  }
  // The resized axis is not the innermost one, so whole rows of inner elements are multiplied by weights and added.
  parallel_for(pool, outer * axis.out, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, inner * taps)), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t o = at % axis.out;
      const T* src = x + at / axis.out * axis.in * inner;
      T* dst = y + at * inner;
      const int64_t* i = index + o * taps;
      const T* w = weights + o * taps;
      if (i[0] < 0) {
        std::fill_n(dst, inner, extrapolation);
        continue;
      }
      const T *row = src + i[0] * inner, *second = src + i[1] * inner;
      for (int64_t n = 0; n < inner; ++n) dst[n] = row[n] * w[0] + second[n] * w[1];
      for (int64_t k = 2; k < taps; ++k) {
        row = src + i[k] * inner;
        for (int64_t n = 0; n < inner; ++n) dst[n] += row[n] * w[k];
      }
    }
  });
}

template void resize_filter_table(const ResizeAxis&, const ResizeOptions&, int64_t*, float*);
template void resize_filter_table(const ResizeAxis&, const ResizeOptions&, int64_t*, double*);
template void resize_axis(int64_t, const ResizeAxis&, int64_t, int64_t, const int64_t*, const float*, float, const float*, float*,
                          ThreadPool*);
template void resize_axis(int64_t, const ResizeAxis&, int64_t, int64_t, const int64_t*, const double*, double, const double*, double*,
                          ThreadPool*);

}  // namespace treadle::kernels
