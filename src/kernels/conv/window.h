// The geometry of convolutions and pools: a window that slides over up to three spatial axes.
#pragma once

#include <cstdint>
#include <span>

namespace treadle::kernels {

/// Has three axes, outermost first. A 2-D window has extent 1 on axis 0, a 1-D window on axes 0 and 1.
struct Window {
  int64_t in[3] = {1, 1, 1}, out[3] = {1, 1, 1}, kernel[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1};
  int64_t pad_begin[3] = {0, 0, 0}, pad_end[3] = {0, 0, 0};
  int rank = 2;

  int64_t in_size() const { return in[0] * in[1] * in[2]; }
  int64_t out_size() const { return out[0] * out[1] * out[2]; }
  int64_t kernel_size() const { return kernel[0] * kernel[1] * kernel[2]; }
};

/// @param pads  all begins, then all ends, as in ONNX. Empty pads, strides and dilations mean 0, 1 and 1.
/// @throws Error(invalid_argument) if the rank is not 1 to 3, an extent is negative, or a kernel, stride or dilation is not positive.
Window make_window(std::span<const int64_t> in, std::span<const int64_t> out, std::span<const int64_t> kernel,
                   std::span<const int64_t> strides, std::span<const int64_t> pads, std::span<const int64_t> dilations);

/// The range [first, last) of the integers k below `count` for which start + k * step is a valid index of an axis with `in` elements.
struct Taps {
  int64_t first, last, start;  ///< start: index for k = 0; may be negative
};
inline Taps places_inside(int64_t start, int64_t step, int64_t count, int64_t in) {
  const int64_t first = start >= 0 ? 0 : step == 1 ? -start : (-start + step - 1) / step;  // the special cases avoid slow divisions
  const int64_t room = in - start;
  const int64_t last = room <= 0 ? 0 : step == 1 ? room : (room + step - 1) / step;
  const int64_t end = last < count ? last : count;
  return {first < end ? first : end, end, start};
}

/// The taps of one axis whose input index o * stride + k * dilation - pad_begin is inside the input.
inline Taps taps_inside(const Window& w, int axis, int64_t o) {
  return places_inside(o * w.stride[axis] - w.pad_begin[axis], w.dilation[axis], w.kernel[axis], w.in[axis]);
}

/// The range of outputs [first, last) of one axis whose tap k is inside the input.
struct Outputs {
  int64_t first, last;
};
inline Outputs outputs_inside(const Window& w, int axis, int64_t k) {
  const int64_t shift = k * w.dilation[axis] - w.pad_begin[axis], s = w.stride[axis];
  int64_t first = shift >= 0 ? 0 : s == 1 ? -shift : (-shift + s - 1) / s;
  const int64_t room = w.in[axis] - shift;
  int64_t last = room <= 0 ? 0 : s == 1 ? room : (room + s - 1) / s;
  if (last > w.out[axis]) last = w.out[axis];
  if (first > last) first = last;
  return {first, last};
}

}  // namespace treadle::kernels
