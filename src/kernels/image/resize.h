// ONNX's Resize. Every filter is separable, so the axes are resized one after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/threads/thread_pool.h"
#include "kernels/movement/transpose_plane.h"

namespace treadle::kernels {

enum class Coordinates : uint8_t {
  half_pixel,
  half_pixel_symmetric,
  pytorch_half_pixel,
  align_corners,
  asymmetric,
  tf_crop_and_resize,
  tf_half_pixel_for_nn,
};
enum class Filter : uint8_t { nearest, linear, cubic };
enum class Nearest : uint8_t { round_prefer_floor, round_prefer_ceil, floor, ceil };

struct ResizeOptions {
  Filter filter = Filter::nearest;
  Coordinates coordinates = Coordinates::half_pixel;
  Nearest nearest = Nearest::round_prefer_floor;
  bool antialias = false, exclude_outside = false;
  double cubic_a = -0.75;
};

struct ResizeAxis {
  int64_t in = 1, out = 1;
  double scale = 1;                   ///< ratio out / in before `out` was rounded
  double roi_begin = 0, roi_end = 1;  ///< region of tf_crop_and_resize; 1 is the last index of the input
};

/// Returns the position in the input that corresponds to output `o`.
double resize_source(const ResizeAxis& axis, Coordinates coordinates, int64_t o);

/// Sets index[o] to the input element for output o, or to -1 if it is outside (tf_crop_and_resize).
void resize_nearest_table(const ResizeAxis& axis, const ResizeOptions& options, int64_t* index);

/// Returns 2, 3 or 4 if the index table repeats each element that many times, in order; otherwise 0.
int resize_times(const int64_t* index, int64_t count);

/// Sets dst[i * times + j] = src[i] for i in [0, n), j in [0, times). @param times  2, 3 or 4
template <typename T>
void repeat_each(int times, int64_t n, const T* src, T* dst) {
  if constexpr (std::is_integral_v<T> && sizeof(T) <= 4) {
    using Bits = std::make_unsigned_t<T>;
    interleave(times, n, reinterpret_cast<const Bits*>(src), 0, reinterpret_cast<Bits*>(dst));
  } else {
    for (int64_t i = 0; i < n; ++i) std::fill_n(dst + i * times, times, src[i]);
  }
}

/// Returns the number of inputs (taps) that are summed for each output.
int64_t resize_taps(const ResizeAxis& axis, const ResizeOptions& options);
/// Computes the tables. @param index, weights  out * taps values; an output outside the input (tf_crop_and_resize) has first index -1
template <typename T>
void resize_filter_table(const ResizeAxis& axis, const ResizeOptions& options, int64_t* index, T* weights);

/// Computes y[outer, out, inner] = weighted sums of x[outer, in, inner]. T is float or double.
template <typename T>
void resize_axis(int64_t outer, const ResizeAxis& axis, int64_t inner, int64_t taps, const int64_t* index, const T* weights,
                 T extrapolation, const T* x, T* y, ThreadPool* pool);

}  // namespace treadle::kernels
