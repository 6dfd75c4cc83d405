// Implements CropAndResize of com.microsoft, which crops rectangles out of images and resizes them to one size.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/object_detection/regions.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer_crop(InferContext& c) {
  check_image(c);
  const std::string_view mode = c.get_string("mode", "bilinear");
  if (mode != "bilinear" && mode != "nearest")
    throw Error(ErrorCode::invalid_argument, fmt::format("mode is \"{}\", not bilinear or nearest", mode));
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  Dim count = c.has_rank(1) ? c.shape(1)[0] : c.data_dependent_dim("rois");
  if (c.has_rank(1)) unify(c.shape(1)[1], 4, "columns of rois");
  if (c.has_rank(2) && c.rank(2) == 1) count = unify(count, c.shape(2)[0], "rois and batch_indices");
  const auto size = c.known(3);
  if (size && size->size() != 2) throw Error(ErrorCode::invalid_argument, fmt::format("crop_size has {} elements, not 2", size->size()));
  Dim height = size ? (*size)[0] : c.data_dependent_dim("height"), width = size ? (*size)[1] : c.data_dependent_dim("width");
  for (const Dim& extent : {height, width})
    if (extent.is_const() && extent.value() < 1)
      throw Error(ErrorCode::invalid_argument, fmt::format("crop_size is {} by {}", to_string(height), to_string(width)));
  c.set_output(0, c.dtype(0), {count, c.shape(0)[1], height, width});
}

// A region has the coordinates of the first and last row and column of its crop, as fractions of the image's last row and column. Elements
// outside the image get extrapolation_value.
struct CropAndResize {
  int64_t batch, channels, height, width, count, out_height, out_width;
  bool nearest;
  float outside;

  static CropAndResize bind(BindContext& c) { return make(c, c.output_shape(0)); }
  static CropAndResize make(const BindContext& c, const Shape& y) {
    const Shape& x = c.shape(0);
    check_equal(c.num_elements(1), 4 * y[0], "elements of rois");
    check_equal(c.num_elements(2), y[0], "elements of batch_indices");
    if (y[0] * y[1] > 0 && x[2] * x[3] == 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("X is {}: it has nothing to crop", to_string(x)));
    return {x[0], x[1], x[2], x[3], y[0], y[2], y[3], c.get_string("mode", "bilinear") == "nearest", c.get_float("extrapolation_value")};
  }

  /// Returns the pixel coordinate of point i of `size` evenly spaced ones. `first` and `last` are their ends, as fractions of the image.
  static float place(int64_t i, int64_t size, float first, float last, int64_t extent) {
    const auto end = static_cast<float>(extent - 1);
    if (size == 1) return 0.5F * (first + last) * end;
    return first * end + static_cast<float>(i) * ((last - first) * end / static_cast<float>(size - 1));
  }

  /// The four pixels around a point of the crop, and the point's position between them. Mode "nearest" uses only the first pixel.
  struct Sample {
    bool inside;
    int64_t at[4];
    float dh, dw;
  };
  Sample sample_of(const float* roi, int64_t bin) const {
    const float h = place(bin / out_width, out_height, roi[0], roi[2], height);
    const float w = place(bin % out_width, out_width, roi[1], roi[3], width);
    // For NaN the comparisons are false, so the point is outside.
    const bool inside = h >= 0 && h <= static_cast<float>(height - 1) && w >= 0 && w <= static_cast<float>(width - 1);
    const float row = inside ? (nearest ? std::round(h) : std::floor(h)) : 0,
                column = inside ? (nearest ? std::round(w) : std::floor(w)) : 0;
    const auto h0 = static_cast<int64_t>(row), w0 = static_cast<int64_t>(column);
    const int64_t h1 = std::min(h0 + 1, height - 1), w1 = std::min(w0 + 1, width - 1);
    return {inside, {h0 * width + w0, h0 * width + w1, h1 * width + w0, h1 * width + w1}, h - row, w - column};
  }

  void crop_region(RunContext& c, int64_t r) const {
    const float* roi = c.in<float>(1) + 4 * r;
    const int64_t image = batch_index(c.in<int32_t>(2)[r], batch);
    const float* x = c.in<float>(0) + image * channels * height * width;
    float* y = c.out<float>(0) + r * channels * out_height * out_width;
    for (int64_t bin = 0; bin < out_height * out_width; ++bin) {
      const Sample s = sample_of(roi, bin);
      for (int64_t channel = 0; channel < channels; ++channel) {
        const float* src = x + channel * height * width;
        float& dst = y[channel * out_height * out_width + bin];
        if (!s.inside) {
          dst = outside;
        } else if (nearest) {
          dst = src[s.at[0]];
        } else {
          const float above = src[s.at[0]] + (src[s.at[1]] - src[s.at[0]]) * s.dw;
          const float below = src[s.at[2]] + (src[s.at[3]] - src[s.at[2]]) * s.dw;
          dst = above + (below - above) * s.dh;
        }
      }
    }
  }
  void run(RunContext& c) const {
    parallel_for(c.pool(), count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) crop_region(c, r);
    });
  }
};

/// Computes the image's gradient: adds each element of dY to the pixels it was interpolated from. Regions may overlap, so one thread
/// computes a whole channel.
struct CropAndResizeGrad {
  CropAndResize forward;

  static CropAndResizeGrad bind(BindContext& c) {
    if (c.shape(0).rank() != 4 || c.shape(3).rank() != 4 || c.shape(0)[1] != c.shape(3)[1])
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the gradient {} is of no crops of {}", to_string(c.shape(3)), to_string(c.shape(0))));
    return {CropAndResize::make(c, c.shape(3))};
  }
  void run(RunContext& c) const {
    const CropAndResize& f = forward;
    const int64_t plane = f.height * f.width, bins = f.out_height * f.out_width;
    std::fill_n(c.out<float>(0), f.batch * f.channels * plane, 0.0F);
    parallel_for(c.pool(), f.channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = 0; r < f.count; ++r) {
        const int64_t image = batch_index(c.in<int32_t>(2)[r], f.batch);
        for (int64_t bin = 0; bin < bins; ++bin) {
          const CropAndResize::Sample s = f.sample_of(c.in<float>(1) + 4 * r, bin);
          if (!s.inside) continue;
          const float weights[4] = {(1 - s.dh) * (1 - s.dw), (1 - s.dh) * s.dw, s.dh * (1 - s.dw), s.dh * s.dw};
          for (int64_t channel = begin; channel < end; ++channel) {
            const float dy = c.in<float>(3)[(r * f.channels + channel) * bins + bin];
            float* dx = c.out<float>(0) + (image * f.channels + channel) * plane;
            if (f.nearest)
              dx[s.at[0]] += dy;
            else
              for (int n = 0; n < 4; ++n) dx[s.at[n]] += dy * weights[n];
          }
        }
      }
    });
  }
};

void infer_crop_grad(InferContext& c) { c.set_output(0, c.input(0)); }

Cost crop_cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {32 * outputs, 4 * outputs * static_cast<double>(bits_of(c.dtype(0))) / 8};
}

std::vector<ValueId> crop_gradient(GradientContext& g) {
  const Attributes attributes = g.attributes();
  return {g.op("CropAndResizeGrad", {g.input(0), g.input(1), g.input(2), g.grad_output(0)}, attributes, "treadle")};
}

/// The gradient with respect to dY is the same operator applied to the incoming gradient.
std::vector<ValueId> crop_grad_gradient(GradientContext& g) {
  Attributes attributes = g.attributes();
  attributes.set("extrapolation_value", 0.0F);
  const ValueId size = g.op("Shape", {g.input(3)}, {{"start", int64_t{2}}});
  return {kNoValue, kNoValue, kNoValue,
          g.op("CropAndResize", {g.grad_output(0), g.input(1), g.input(2), size}, attributes, "com.microsoft")};
}

}  // namespace

std::vector<OpDef> crop_and_resize_ops() {
  constexpr TypeSet kFloat{DType::float32}, kInt32{DType::int32};
  return {{.name = "CropAndResize",
           .domain = "com.microsoft",
           .since = {1},
           .inputs = {{"X", kFloat, "T1"}, {"rois", kFloat, "T1"}, {"batch_indices", kInt32}, {"crop_size", kInt32Or64}},
           .outputs = {{"Y", kFloat, "T1"}},
           .attributes = {{"extrapolation_value", 0.0f}, {"mode", std::string_view("bilinear")}},
           .infer = infer_crop,
           .cost = crop_cost,
           .kernels = {kernel<CropAndResize>()},
           .gradient = crop_gradient,
           .value_inputs = {3}},
          {.name = "CropAndResizeGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kFloat, "T"}, {"rois", kFloat, "T"}, {"batch_indices", kInt32}, {"dY", kFloat, "T"}},
           .outputs = {{"dX", kFloat, "T"}},
           .attributes = {{"extrapolation_value", 0.0f}, {"mode", std::string_view("bilinear")}},
           .infer = infer_crop_grad,
           .kernels = {kernel<CropAndResizeGrad>()},
           .gradient = crop_grad_gradient}};
}

}  // namespace treadle::ops
