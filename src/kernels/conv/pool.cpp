#include "kernels/conv/pool.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/conv/pool_planes.h"

namespace treadle::kernels {
namespace {

int64_t plane_grain(const Window& w) { return std::max<int64_t>(1, 32'768 / std::max<int64_t>(1, w.out_size() * w.kernel_size())); }

/// Calls tap(input offset of output 0, output row, range of outputs) for each tap of each output row; the tap is inside the input for this
/// range. Calls `start` before and `finish` after each row.
template <typename Start, typename Tap, typename Finish>
void for_each_row(const Window& w, Start start, Tap tap, Finish finish) {
  for (int64_t od = 0; od < w.out[0]; ++od) {
    const Taps depth = taps_inside(w, 0, od);
    for (int64_t oh = 0; oh < w.out[1]; ++oh) {
      const Taps height = taps_inside(w, 1, oh);
      const int64_t row = od * w.out[1] + oh;
      start(row);
      for (int64_t kd = depth.first; kd < depth.last; ++kd) {
        for (int64_t kh = height.first; kh < height.last; ++kh) {
          const int64_t in_row = (depth.start + kd * w.dilation[0]) * w.in[1] + height.start + kh * w.dilation[1];
          for (int64_t kw = 0; kw < w.kernel[2]; ++kw)
            tap(in_row * w.in[2] + kw * w.dilation[2] - w.pad_begin[2], row, outputs_inside(w, 2, kw));
        }
      }
      finish(row, od, oh);
    }
  }
}

// Returns the number of elements of a window along one axis that are in the input, or (include_pad) in the input and its pads.
int64_t counted(const Window& w, int axis, int64_t o, bool include_pad) {
  const int64_t at = o * w.stride[axis] - w.pad_begin[axis];
  if (at >= 0 && at + (w.kernel[axis] - 1) * w.dilation[axis] < w.in[axis]) return w.kernel[axis];
  const Taps inside = taps_inside(w, axis, o);
  if (!include_pad) return inside.last - inside.first;
  const int64_t start = inside.start, limit = w.in[axis] + w.pad_end[axis];  // windows never start before the begin pad
  int64_t n = 0;
  for (int64_t k = 0; k < w.kernel[axis]; ++k) n += start + k * w.dilation[axis] < limit;
  return n;
}

template <typename T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return value != value;
  return false;
}

template <typename T>
void max_plane(const Window& w, const T* x, T* y) {
  const T lowest = std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  auto join = [](T a, T b) { return b > a || is_nan(b) ? b : a; };
  for_each_row(
      w, [&](int64_t row) { std::fill(y + row * w.out[2], y + (row + 1) * w.out[2], lowest); },
      [&](int64_t from, int64_t row, Outputs o) {
        for (int64_t i = o.first; i < o.last; ++i) y[row * w.out[2] + i] = join(y[row * w.out[2] + i], x[from + i * w.stride[2]]);
      },
      [](int64_t, int64_t, int64_t) {});
}

// Computes the sum of each window; does not divide it by the number of elements.
template <typename T>
void sum_plane(const Window& w, const T* x, T* y) {
  for_each_row(
      w, [&](int64_t row) { std::fill(y + row * w.out[2], y + (row + 1) * w.out[2], T{0}); },
      [&](int64_t from, int64_t row, Outputs o) {
        for (int64_t i = o.first; i < o.last; ++i) y[row * w.out[2] + i] += x[from + i * w.stride[2]];
      },
      [](int64_t, int64_t, int64_t) {});
}

template <typename T>
void max_plane_indices(const Window& w, int64_t plane, const T* x, T* y, int64_t* indices, bool column_major) {
  const int64_t base = plane * w.in_size();
  int64_t out = 0;
  for (int64_t od = 0; od < w.out[0]; ++od) {
    const Taps depth = taps_inside(w, 0, od);
    for (int64_t oh = 0; oh < w.out[1]; ++oh) {
      const Taps height = taps_inside(w, 1, oh);
      for (int64_t ow = 0; ow < w.out[2]; ++ow, ++out) {
        const Taps width = taps_inside(w, 2, ow);
        int64_t best = -1;
        for (int64_t kd = depth.first; kd < depth.last; ++kd) {
          for (int64_t kh = height.first; kh < height.last; ++kh) {
            const int64_t row = (depth.start + kd * w.dilation[0]) * w.in[1] + height.start + kh * w.dilation[1];
            for (int64_t kw = width.first; kw < width.last; ++kw) {
              const int64_t at = row * w.in[2] + width.start + kw * w.dilation[2];
              if (best < 0 || x[at] > x[best] || (is_nan(x[at]) && !is_nan(x[best]))) best = at;
            }
          }
        }
        y[out] = best < 0 ? (std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest())
                          : x[best];
        int64_t index = best;
        if (column_major && best >= 0) {
          const int64_t iw = best % w.in[2], ih = best / w.in[2] % w.in[1], id = best / w.in[2] / w.in[1];
          index = (iw * w.in[1] + ih) * w.in[0] + id;
        }
        indices[out] = best < 0 ? -1 : base + index;
      }
    }
  }
}

}  // namespace

int64_t pool_elements(const Window& w, int axis, int64_t o, bool include_pad) { return counted(w, axis, o, include_pad); }

int64_t pool_out_extent(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t pad_begin, int64_t pad_end, bool ceil_mode) {
  const int64_t room = in + pad_begin + pad_end - dilation * (kernel - 1) - 1 + (ceil_mode ? stride - 1 : 0);
  if (room < 0) return 0;
  int64_t out = room / stride + 1;
  if (ceil_mode && (out - 1) * stride >= in + pad_begin) --out;
  return out;
}

template <typename T>
void max_pool(const Window& w, int64_t planes, const T* x, T* y, int64_t* indices, bool column_major, ThreadPool* pool) {
  parallel_for(pool, planes, plane_grain(w), [&](int64_t begin, int64_t end) {
    if (!indices && fits_pool_planes(w)) return max_planes(w, begin, end, planes, x, y);
    for (int64_t p = begin; p < end; ++p) {
      const T* src = x + p * w.in_size();
      T* dst = y + p * w.out_size();
      if (indices) {
        max_plane_indices(w, p, src, dst, indices + p * w.out_size(), column_major);
      } else {
        max_plane(w, src, dst);
      }
    }
  });
}

template <typename T>
void average_pool(const Window& w, int64_t planes, const T* x, T* y, bool count_include_pad, ThreadPool* pool) {
  parallel_for(pool, planes, plane_grain(w), [&](int64_t begin, int64_t end) {
    if (fits_pool_planes(w)) return average_planes(w, begin, end, planes, count_include_pad, x, y);
    for (int64_t p = begin; p < end; ++p) {
      T* dst = y + p * w.out_size();
      sum_plane(w, x + p * w.in_size(), dst);
      for (int64_t od = 0; od < w.out[0]; ++od) {
        const int64_t depth = counted(w, 0, od, count_include_pad);
        for (int64_t oh = 0; oh < w.out[1]; ++oh) {
          const int64_t outer = depth * counted(w, 1, oh, count_include_pad);
          for (int64_t ow = 0; ow < w.out[2]; ++ow) *dst++ /= static_cast<T>(outer * counted(w, 2, ow, count_include_pad));
        }
      }
    }
  });
}

template <typename T>
void lp_pool(const Window& w, int64_t planes, const T* x, T* y, int64_t p, ThreadPool* pool) {
  parallel_for(pool, planes, plane_grain(w), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const T* src = x + plane * w.in_size();
      T* dst = y + plane * w.out_size();
      for_each_row(
          w, [&](int64_t row) { std::fill(dst + row * w.out[2], dst + (row + 1) * w.out[2], T{0}); },
          [&](int64_t from, int64_t row, Outputs o) {
            for (int64_t i = o.first; i < o.last; ++i) {
              const T v = std::abs(src[from + i * w.stride[2]]);
              dst[row * w.out[2] + i] += p == 1 ? v : p == 2 ? v * v : std::pow(v, static_cast<T>(p));
            }
          },
          [&](int64_t row, int64_t, int64_t) {
            for (int64_t i = 0; i < w.out[2]; ++i) {
              T& v = dst[row * w.out[2] + i];
              v = p == 1 ? v : p == 2 ? std::sqrt(v) : std::pow(v, T{1} / static_cast<T>(p));
            }
          });
    }
  });
}

template void max_pool(const Window&, int64_t, const float*, float*, int64_t*, bool, ThreadPool*);
template void max_pool(const Window&, int64_t, const double*, double*, int64_t*, bool, ThreadPool*);
template void max_pool(const Window&, int64_t, const int8_t*, int8_t*, int64_t*, bool, ThreadPool*);
template void max_pool(const Window&, int64_t, const uint8_t*, uint8_t*, int64_t*, bool, ThreadPool*);
template void average_pool(const Window&, int64_t, const float*, float*, bool, ThreadPool*);
template void average_pool(const Window&, int64_t, const double*, double*, bool, ThreadPool*);
template void lp_pool(const Window&, int64_t, const float*, float*, int64_t, ThreadPool*);
template void lp_pool(const Window&, int64_t, const double*, double*, int64_t, ThreadPool*);

}  // namespace treadle::kernels
