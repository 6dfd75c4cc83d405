#include "kernels/conv/im2col.h"

#include <algorithm>
#include <cstring>

namespace treadle::kernels {
namespace {

/// The part of an output row that lies in the panel.
struct Segment {
  int64_t id, ih;  // depth and row of the input that tap 0 reads
  int64_t ow, length, column;
};

constexpr int64_t kMaxPlanned = 512;  // maximum number of copies that are planned once and reused for all channels

/// The copy of a segment for one tap of the last axis: `count` elements of an input row, from `offset`, between `before` and `after` pads.
struct Copy {
  int64_t offset, before, count, after;
};
Copy copy_of(const Window& w, const Segment& s, int64_t kw) {
  const Outputs inside = outputs_inside(w, 2, kw);
  const int64_t end = s.ow + s.length, first = std::clamp(inside.first, s.ow, end), last = std::clamp(inside.last, first, end);
  return {kw * w.dilation[2] + first * w.stride[2] - w.pad_begin[2], first - s.ow, last - first, end - last};
}

/// Writes one tap of a segment. @param row  input row, in which the copied elements are `stride` apart
template <typename T>
void copy_tap(const T* row, const Copy& copy, int64_t stride, T pad_value, T* dst) {
  for (int64_t i = 0; i < copy.before; ++i) *dst++ = pad_value;
  const T* from = row + copy.offset;
  if (stride == 1) {
    std::memcpy(dst, from, static_cast<size_t>(copy.count) * sizeof(T));
  } else if (stride == 2) {
    for (int64_t i = 0; i < copy.count; ++i) dst[i] = from[2 * i];
  } else {
    for (int64_t i = 0; i < copy.count; ++i) dst[i] = from[i * stride];
  }
  dst += copy.count;
  for (int64_t i = 0; i < copy.after; ++i) *dst++ = pad_value;
}

}  // namespace

template <typename T>
void im2col_panel(const Window& w, int64_t channels, const T* x, T pad_value, int64_t begin, int64_t columns, int64_t width, T* panel) {
  Segment segments[kMaxPanelWidth];
  int64_t num_segments = 0;
  for (int64_t column = 0; column < columns; ++num_segments) {
    const int64_t at = begin + column, ow = at % w.out[2], row = at / w.out[2];
    const int64_t length = std::min(columns - column, w.out[2] - ow);
    segments[num_segments] = {row / w.out[1] * w.stride[0] - w.pad_begin[0], row % w.out[1] * w.stride[1] - w.pad_begin[1], ow, length,
                              column};
    column += length;
  }
  Copy planned[kMaxPlanned];
  const int64_t taps = w.kernel[2], num_planned = std::min(kMaxPlanned, num_segments * taps);
  for (int64_t i = 0; i < num_planned; ++i) planned[i] = copy_of(w, segments[i / taps], i % taps);
  const int64_t in_size = w.in_size();
  for (int64_t c = 0; c < channels; ++c, x += in_size) {
    for (int64_t kd = 0; kd < w.kernel[0]; ++kd) {
      for (int64_t kh = 0; kh < w.kernel[1]; ++kh, panel += taps * width) {
        for (int64_t i = 0; i < num_segments; ++i) {
          const Segment& s = segments[i];
          const int64_t id = s.id + kd * w.dilation[0], ih = s.ih + kh * w.dilation[1];
          T* dst = panel + s.column;
          if (id < 0 || id >= w.in[0] || ih < 0 || ih >= w.in[1]) {
            for (int64_t kw = 0; kw < taps; ++kw, dst += width) std::fill(dst, dst + s.length, pad_value);
            continue;
          }
          const T* row = x + (id * w.in[1] + ih) * w.in[2];
          for (int64_t kw = 0, at = i * taps; kw < taps; ++kw, ++at, dst += width)
            copy_tap(row, at < num_planned ? planned[at] : copy_of(w, s, kw), w.stride[2], pad_value, dst);
        }
        if (width > columns) {
          for (int64_t kw = 0; kw < taps; ++kw) std::fill(panel + kw * width + columns, panel + (kw + 1) * width, T{0});
        }
      }
    }
  }
}

template void im2col_panel(const Window&, int64_t, const float*, float, int64_t, int64_t, int64_t, float*);
template void im2col_panel(const Window&, int64_t, const double*, double, int64_t, int64_t, int64_t, double*);

}  // namespace treadle::kernels
