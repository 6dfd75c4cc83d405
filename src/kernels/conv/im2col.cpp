#include "kernels/conv/im2col.h"

#include <algorithm>
#include <cstring>

namespace treadle::kernels {
namespace {

/// Outputs of one output row that lie in the panel.
struct Segment {
  int64_t od, oh, ow, length, column;
};

constexpr int64_t kMaxSegments = 256;  // panels are at most 4 vectors of 64 bytes of the smallest element wide

template <typename T>
void copy_tap(const Window& w, const T* row, int64_t kw, T pad_value, const Segment& s, T* dst) {
  const Outputs inside = outputs_inside(w, 2, kw);
  const int64_t first = std::clamp(inside.first, s.ow, s.ow + s.length), last = std::clamp(inside.last, first, s.ow + s.length);
  const int64_t stride = w.stride[2];
  for (int64_t o = s.ow; o < first; ++o) dst[o - s.ow] = pad_value;
  const T* from = row + kw * w.dilation[2] - w.pad_begin[2];
  if (stride == 1) {
    if (last > first) std::memcpy(dst + (first - s.ow), from + first, static_cast<size_t>(last - first) * sizeof(T));
  } else {
    for (int64_t o = first; o < last; ++o) dst[o - s.ow] = from[o * stride];
  }
  for (int64_t o = last; o < s.ow + s.length; ++o) dst[o - s.ow] = pad_value;
}

}  // namespace

template <typename T>
void im2col_panel(const Window& w, int64_t channels, const T* x, T pad_value, int64_t begin, int64_t columns, int64_t width, T* panel) {
  Segment segments[kMaxSegments];
  int64_t num_segments = 0;
  for (int64_t column = 0; column < columns; ++num_segments) {
    const int64_t at = begin + column, ow = at % w.out[2], row = at / w.out[2];
    const int64_t length = std::min(columns - column, w.out[2] - ow);
    segments[num_segments] = {row / w.out[1], row % w.out[1], ow, length, column};
    column += length;
  }
  const int64_t in_size = w.in_size();
  for (int64_t c = 0; c < channels; ++c, x += in_size) {
    for (int64_t kd = 0; kd < w.kernel[0]; ++kd) {
      for (int64_t kh = 0; kh < w.kernel[1]; ++kh) {
        for (int64_t kw = 0; kw < w.kernel[2]; ++kw, panel += width) {
          for (int64_t i = 0; i < num_segments; ++i) {
            const Segment& s = segments[i];
            const int64_t id = s.od * w.stride[0] + kd * w.dilation[0] - w.pad_begin[0];
            const int64_t ih = s.oh * w.stride[1] + kh * w.dilation[1] - w.pad_begin[1];
            if (id < 0 || id >= w.in[0] || ih < 0 || ih >= w.in[1]) {
              std::fill(panel + s.column, panel + s.column + s.length, pad_value);
            } else {
              copy_tap(w, x + (id * w.in[1] + ih) * w.in[2], kw, pad_value, s, panel + s.column);
            }
          }
          std::fill(panel + columns, panel + width, T{0});
        }
      }
    }
  }
}

template void im2col_panel(const Window&, int64_t, const float*, float, int64_t, int64_t, int64_t, float*);
template void im2col_panel(const Window&, int64_t, const double*, double, int64_t, int64_t, int64_t, double*);
template void im2col_panel(const Window&, int64_t, const int16_t*, int16_t, int64_t, int64_t, int64_t, int16_t*);

}  // namespace treadle::kernels
