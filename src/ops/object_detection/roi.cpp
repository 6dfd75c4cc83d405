// Implements RoiAlign and MaxRoiPool: pooling over rectangles of an image.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/object_detection/regions.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer_roi_align(InferContext& c) {
  check_image(c);
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  const int64_t height = c.get_int("output_height", 1), width = c.get_int("output_width", 1);
  if (height < 1 || width < 1) throw Error(ErrorCode::invalid_argument, fmt::format("the output is {} by {}", height, width));
  Dim count = c.has_rank(1) ? c.shape(1)[0] : c.has_rank(2) && c.rank(2) == 1 ? c.shape(2)[0] : c.data_dependent_dim("rois");
  if (c.has_rank(1)) {
    unify(c.shape(1)[1], 4, "columns of rois");
    if (c.has_rank(2) && c.rank(2) == 1) count = unify(count, c.shape(2)[0], "rois and batch_indices");
  }
  c.set_output(0, c.dtype(0), {count, c.shape(0)[1], height, width});
}

}  // namespace

RegionPlan RegionPlan::of_align(const BindContext& c, const Shape& y) {
  const Shape& x = c.shape(0);
  RegionPlan k{x[0], x[1], x[2], x[3], y[0], y[2], y[3], c.get_float("spatial_scale", 1), c.get_int("sampling_ratio"), false, false};
  check_equal(c.num_elements(1), 4 * k.count, "elements of rois");
  check_equal(c.num_elements(2), k.count, "elements of batch_indices");
  const std::string_view mode = c.get_string("mode", "avg"), coordinates = c.get_string("coordinate_transformation_mode", "half_pixel");
  if (mode != "avg" && mode != "max") throw Error(ErrorCode::invalid_argument, fmt::format("mode is \"{}\", not avg or max", mode));
  if (coordinates != "half_pixel" && coordinates != "output_half_pixel")
    throw Error(ErrorCode::invalid_argument,
                fmt::format("coordinate_transformation_mode is \"{}\", not half_pixel or output_half_pixel", coordinates));
  k.half_pixel = coordinates == "half_pixel", k.takes_maximum = mode == "max";
  if (constexpr int64_t kMostSamples = 10'000; k.sampling_ratio > kMostSamples)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("sampling_ratio is {}: parts would take more than {} samples a side", k.sampling_ratio, kMostSamples));
  if (k.count * k.channels > 0 && k.height * k.width == 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("X is {}: it has nothing to pool", to_string(x)));
  return k;
}

RegionPlan RegionPlan::of_max_pool(const BindContext& c, const Shape& y) {
  const Shape& x = c.shape(0);
  check_equal(c.num_elements(1), 5 * y[0], "elements of rois");
  return {x[0], x[1], x[2], x[3], y[0], y[2], y[3], c.get_float("spatial_scale", 1), 0, false, false};
}

namespace {

template <typename T>
struct RoiAlign : RegionPlan {
  using C = compute_type_t<T>;

  static RoiAlign bind(BindContext& c) { return make(c, c.output_shape(0)); }
  static RoiAlign make(const BindContext& c, const Shape& y) { return {RegionPlan::of_align(c, y)}; }

  /// The four pixels around a sampling point, and their weights for bilinear interpolation.
  struct Sample {
    int64_t at[4];
    C weight[4];
  };
  bool sample_at(C h, C w, Sample& s) const {
    if (!(h >= -1 && h <= static_cast<C>(height) && w >= -1 && w <= static_cast<C>(width))) return false;
    auto split = [](C place, int64_t extent, int64_t& low, int64_t& high) {
      place = std::max(place, C{0});
      low = static_cast<int64_t>(place);
      if (low >= extent - 1) {
        low = high = extent - 1;
        return C{0};
      }
      high = low + 1;
      return place - static_cast<C>(low);
    };
    int64_t h0, h1, w0, w1;
    const C dh = split(h, height, h0, h1), dw = split(w, width, w0, w1);
    s = {{h0 * width + w0, h0 * width + w1, h1 * width + w0, h1 * width + w1},
         {(1 - dh) * (1 - dw), (1 - dh) * dw, dh * (1 - dw), dh * dw}};
    return true;
  }
  int64_t samples_along(C bin) const {
    if (sampling_ratio > 0) return sampling_ratio;
    constexpr C kMost = 100'000;
    if (!(bin < kMost))
      throw Error(ErrorCode::invalid_argument, fmt::format("a part of a region spans {} elements", static_cast<double>(bin)));
    return std::max<int64_t>(static_cast<int64_t>(std::ceil(bin)), 0);
  }

  /// A region is divided into bins: the origin and size of the bins, and the rows and columns of samples per bin.
  struct Region {
    int64_t image, rows, columns;
    C top, left, bin_height, bin_width;
  };
  Region region_at(RunContext& c, int64_t r) const {
    const T* roi = c.in<T>(1) + 4 * r;
    const C offset = half_pixel ? C{0.5} : C{0};
    C corner[4];
    for (int i = 0; i < 4; ++i) corner[i] = static_cast<C>(roi[i]) * static_cast<C>(scale) - offset;
    C roi_width = corner[2] - corner[0], roi_height = corner[3] - corner[1];
    // Before opset 16 there are no half-pixel coordinates, and a malformed region is treated as a region of one pixel.
    if (!half_pixel) roi_width = std::max(roi_width, C{1}), roi_height = std::max(roi_height, C{1});
    const C bin_height = roi_height / static_cast<C>(out_height), bin_width = roi_width / static_cast<C>(out_width);
    return {batch_index(c.in<int64_t>(2)[r], batch),
            samples_along(bin_height),
            samples_along(bin_width),
            corner[1],
            corner[0],
            bin_height,
            bin_width};
  }
  /// The samples of a bin that may be inside the image. Only these are visited, so a huge region costs no more than the whole image.
  struct Inside {
    int64_t first_row, rows, first_column, columns;
    int64_t count() const { return rows * columns; }
  };
  static void inside_along(C start, C bin, int64_t samples, int64_t extent, int64_t& first, int64_t& count) {
    first = 0, count = samples;
    if (!(bin > 0)) return;
    const C each = bin / static_cast<C>(samples), most = static_cast<C>(samples);
    // Adds one sample on either side to allow for rounding. If `start` is NaN, all samples are kept, and sample_at() rejects them.
    const C low = (-1 - start) / each - C{2}, high = (static_cast<C>(extent) - start) / each + C{2};
    if (low > 0) first = static_cast<int64_t>(std::min(low, most));
    if (high < most) count = static_cast<int64_t>(std::max(high, C{0}));
    count = std::max<int64_t>(count - first, 0);
  }
  Inside inside_of(const Region& region, int64_t bin) const {
    Inside inside;
    inside_along(region.top + static_cast<C>(bin / out_width) * region.bin_height, region.bin_height, region.rows, height, inside.first_row,
                 inside.rows);
    inside_along(region.left + static_cast<C>(bin % out_width) * region.bin_width, region.bin_width, region.columns, width,
                 inside.first_column, inside.columns);
    return inside;
  }
  /// Computes sample (i, k) of a bin. Returns false if it is outside the image.
  bool sample_of(const Region& region, int64_t bin, int64_t i, int64_t k, Sample& s) const {
    const C top = region.top + static_cast<C>(bin / out_width) * region.bin_height;
    const C left = region.left + static_cast<C>(bin % out_width) * region.bin_width;
    const C h = top + (static_cast<C>(i) + C{0.5}) * region.bin_height / static_cast<C>(region.rows);
    return sample_at(h, left + (static_cast<C>(k) + C{0.5}) * region.bin_width / static_cast<C>(region.columns), s);
  }

  static constexpr int64_t kSamples = 64, kChannels = 64;
  struct Samples {
    int64_t count = 0;
    Sample at[kSamples];
    bool inside[kSamples];
  };
  // Computes samples that are inside the image, at most kSamples, beginning with number `first`. They are the same for all channels.
  void find_samples(const Region& region, const Inside& inside, int64_t bin, int64_t first, Samples& samples) const {
    samples.count = std::min(kSamples, inside.count() - first);
    for (int64_t n = 0; n < samples.count; ++n)
      samples.inside[n] = sample_of(region, bin, inside.first_row + (first + n) / inside.columns,
                                    inside.first_column + (first + n) % inside.columns, samples.at[n]);
  }
  // Mean: adds the interpolated samples to `total`. Max: takes the maximum of `total` and all weighted pixels, as ONNX's reference does.
  C pooled(const Samples& samples, const T* src, bool first, C total) const {
    for (int64_t n = 0; n < samples.count; ++n) {
      C part[4] = {};
      const Sample& s = samples.at[n];
      if (samples.inside[n])
        for (int i = 0; i < 4; ++i) part[i] = s.weight[i] * static_cast<C>(src[s.at[i]]);
      if (takes_maximum) {
        const C largest = *std::max_element(part, part + 4);
        total = first ? largest : std::max(total, largest);
        first = false;
      } else {
        total += part[0] + part[1] + part[2] + part[3];
      }
    }
    return total;
  }

  void pool_region(RunContext& c, int64_t r) const {
    const Region region = region_at(c, r);
    const int64_t plane = height * width, bins = out_height * out_width, num_samples = region.rows * region.columns;
    const T* x = c.in<T>(0) + region.image * channels * plane;
    T* y = c.out<T>(0) + r * channels * bins;
    Samples samples;
    for (int64_t bin = 0; bin < bins; ++bin) {
      const Inside inside = inside_of(region, bin);
      const bool outside = inside.count() < num_samples;  // samples outside the image count as 0
      for (int64_t channel = 0; channel < channels; channel += kChannels) {
        const int64_t some = std::min(kChannels, channels - channel);
        C totals[kChannels] = {};
        for (int64_t first = 0; first < inside.count(); first += kSamples) {
          if (channel == 0 || inside.count() > kSamples) find_samples(region, inside, bin, first, samples);
          for (int64_t i = 0; i < some; ++i) totals[i] = pooled(samples, x + (channel + i) * plane, first == 0 && !outside, totals[i]);
        }
        for (int64_t i = 0; i < some; ++i) {
          const C mean = totals[i] / static_cast<C>(std::max<int64_t>(num_samples, 1));
          y[(channel + i) * bins + bin] = static_cast<T>(takes_maximum ? totals[i] : mean);
        }
      }
    }
  }
  void run(RunContext& c) const {
    parallel_for(c.pool(), count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) pool_region(c, r);
    });
  }
};

/// Mean: adds dY to the pixels around each sample, by their weights. Max: adds dY to the pixel that gave the maximum. Regions may overlap,
/// so one thread computes a whole channel.
template <typename T>
struct RoiAlignGrad {
  RoiAlign<T> forward;

  static RoiAlignGrad bind(BindContext& c) {
    if (c.shape(0).rank() != 4 || c.shape(3).rank() != 4 || c.shape(0)[1] != c.shape(3)[1])
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the gradient {} is of no regions of {}", to_string(c.shape(3)), to_string(c.shape(0))));
    return {RoiAlign<T>::make(c, c.shape(3))};
  }
  void spread_part(const typename RoiAlign<T>::Region& region, int64_t bin, const T* x, T flow, T* dx) const {
    typename RoiAlign<T>::Sample s;
    T largest = 0, best_weight = 0;
    int64_t best_at = -1;
    const auto box = forward.inside_of(region, bin);
    bool first = box.count() == region.rows * region.columns;  // false: a sample outside the image gives 0
    for (int64_t i = box.first_row; i < box.first_row + box.rows; ++i) {
      for (int64_t k = box.first_column; k < box.first_column + box.columns; ++k) {
        const bool inside = forward.sample_of(region, bin, i, k, s);
        if (!forward.takes_maximum) {
          const T share = flow / static_cast<T>(region.rows * region.columns);
          for (int n = 0; inside && n < 4; ++n) dx[s.at[n]] += share * s.weight[n];
          continue;
        }
        for (int n = 0; n < 4; ++n) {
          const T value = inside ? s.weight[n] * x[s.at[n]] : T{0};
          if (!first && !(value > largest)) continue;
          first = false, largest = value, best_at = inside ? s.at[n] : -1, best_weight = s.weight[n];
        }
      }
    }
    if (best_at >= 0) dx[best_at] += flow * best_weight;
  }
  void run(RunContext& c) const {
    const RoiAlign<T>& f = forward;
    const int64_t plane = f.height * f.width, bins = f.out_height * f.out_width;
    std::fill_n(c.out<T>(0), f.batch * f.channels * plane, T{0});
    parallel_for(c.pool(), f.channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = 0; r < f.count; ++r) {
        const auto region = f.region_at(c, r);
        for (int64_t channel = begin; channel < end; ++channel) {
          const int64_t image = (region.image * f.channels + channel) * plane;
          const T* dy = c.in<T>(3) + (r * f.channels + channel) * bins;
          for (int64_t bin = 0; bin < bins; ++bin) spread_part(region, bin, c.in<T>(0) + image, dy[bin], c.out<T>(0) + image);
        }
      }
    });
  }
};

void infer_roi_grad(InferContext& c) { c.set_output(0, c.input(0)); }

void name_coordinates(Graph& graph, NodeId id) {
  graph.node(id).attributes.set("coordinate_transformation_mode", std::string("output_half_pixel"));
}

void infer_max_roi_pool(InferContext& c) {
  check_image(c);
  const std::vector<int64_t>& pooled = c.get_ints("pooled_shape");
  if (pooled.size() != 2 || pooled[0] < 1 || pooled[1] < 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("pooled_shape has {} elements; it has two, which are positive", pooled.size()));
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  if (c.has_rank(1)) unify(c.shape(1)[1], 5, "columns of rois");
  c.set_output(0, c.dtype(0), {c.has_rank(1) ? c.shape(1)[0] : c.data_dependent_dim("rois"), c.shape(0)[1], pooled[0], pooled[1]});
}

template <typename T>
struct MaxRoiPool : RegionPlan {
  using C = compute_type_t<T>;

  static MaxRoiPool bind(BindContext& c) { return make(c, c.output_shape(0)); }
  static MaxRoiPool make(const BindContext& c, const Shape& y) { return {RegionPlan::of_max_pool(c, y)}; }
  // Converts a coordinate to an index. The clamp is needed because converting huge floats to integers is undefined.
  static int64_t to_index(C value) {
    constexpr C kFar = 1e9;
    return static_cast<int64_t>(std::clamp(std::isnan(value) ? C{0} : value, -kFar, kFar));
  }
  /// Calls fn(image, bin, first_row, end_row, first_column, end_column) for each bin of region r. The ends are exclusive. A bin is empty if
  /// one of its ends is not greater than its start.
  template <typename Fn>
  void for_each_part(RunContext& c, int64_t r, Fn&& fn) const {
    const T* roi = c.in<T>(1) + 5 * r;
    const int64_t image = batch_index(to_index(static_cast<C>(roi[0])), batch);
    auto corner = [&](int i) { return to_index(std::round(static_cast<C>(roi[i]) * static_cast<C>(scale))); };
    const int64_t left = corner(1), top = corner(2);
    const C bin_width = static_cast<C>(std::max<int64_t>(corner(3) - left + 1, 1)) / static_cast<C>(out_width);
    const C bin_height = static_cast<C>(std::max<int64_t>(corner(4) - top + 1, 1)) / static_cast<C>(out_height);
    auto bounds = [](int64_t i, C bin, int64_t start, int64_t extent, int64_t& first, int64_t& last) {
      first = std::clamp<int64_t>(static_cast<int64_t>(std::floor(static_cast<C>(i) * bin)) + start, 0, extent);
      last = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(static_cast<C>(i + 1) * bin)) + start, 0, extent);
    };
    for (int64_t bin = 0; bin < out_height * out_width; ++bin) {
      int64_t h0, h1, w0, w1;
      bounds(bin / out_width, bin_height, top, height, h0, h1), bounds(bin % out_width, bin_width, left, width, w0, w1);
      fn(image, bin, h0, h1, w0, w1);
    }
  }
  void pool_region(RunContext& c, int64_t r) const {
    for_each_part(c, r, [&](int64_t image, int64_t bin, int64_t h0, int64_t h1, int64_t w0, int64_t w1) {
      const bool empty = h0 >= h1 || w0 >= w1;
      for (int64_t channel = 0; channel < channels; ++channel) {
        const T* src = c.in<T>(0) + (image * channels + channel) * height * width;
        C largest = empty ? C{0} : -std::numeric_limits<C>::infinity();
        for (int64_t h = h0; h < h1; ++h)
          for (int64_t w = w0; w < w1; ++w) largest = std::max(largest, static_cast<C>(src[h * width + w]));
        c.out<T>(0)[(r * channels + channel) * out_height * out_width + bin] = static_cast<T>(largest);
      }
    });
  }
  void run(RunContext& c) const {
    parallel_for(c.pool(), count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) pool_region(c, r);
    });
  }
};

/// Adds each element of dY to the first maximum of its bin.
template <typename T>
struct MaxRoiPoolGrad {
  MaxRoiPool<T> forward;

  static MaxRoiPoolGrad bind(BindContext& c) {
    if (c.shape(0).rank() != 4 || c.shape(2).rank() != 4 || c.shape(0)[1] != c.shape(2)[1])
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the gradient {} is of no regions of {}", to_string(c.shape(2)), to_string(c.shape(0))));
    return {MaxRoiPool<T>::make(c, c.shape(2))};
  }
  void run(RunContext& c) const {
    const MaxRoiPool<T>& f = forward;
    const int64_t plane = f.height * f.width, bins = f.out_height * f.out_width;
    std::fill_n(c.out<T>(0), f.batch * f.channels * plane, T{0});
    for (int64_t r = 0; r < f.count; ++r) {
      f.for_each_part(c, r, [&](int64_t image, int64_t bin, int64_t h0, int64_t h1, int64_t w0, int64_t w1) {
        if (h0 >= h1 || w0 >= w1) return;
        for (int64_t channel = 0; channel < f.channels; ++channel) {
          const int64_t at = (image * f.channels + channel) * plane;
          const T* src = c.in<T>(0) + at;
          int64_t best = h0 * f.width + w0;
          for (int64_t h = h0; h < h1; ++h)
            for (int64_t w = w0; w < w1; ++w)
              if (src[h * f.width + w] > src[best]) best = h * f.width + w;
          c.out<T>(0)[at + best] += c.in<T>(2)[(r * f.channels + channel) * bins + bin];
        }
      });
    }
  }
};

Cost roi_cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {32 * outputs, 4 * outputs * static_cast<double>(bits_of(c.dtype(0))) / 8};
}

Gradients roi_align_gradient(GradientContext& g) {
  const Attributes attributes = g.attributes();
  return {g.op("RoiAlignGrad", {g.input(0), g.input(1), g.input(2), g.grad_output(0)}, attributes, "treadle")};
}

Gradients max_roi_pool_gradient(GradientContext& g) {
  const Attributes attributes = g.attributes();
  return {g.op("MaxRoiPoolGrad", {g.input(0), g.input(1), g.grad_output(0)}, attributes, "treadle")};
}

}  // namespace

std::vector<OpDef> roi_ops() {
  constexpr TypeSet kGradientTypes{DType::float32, DType::float64};
  return {{.name = "RoiAlign",
           .since = {10, 16, 22},
           .upgrade = {{10, name_coordinates}},
           .inputs = {{"X", kFloats, "T1"}, {"rois", kFloats, "T1"}, {"batch_indices", kInt64, "T2"}},
           .outputs = {{"Y", kFloats, "T1"}},
           .attributes = {{"coordinate_transformation_mode", std::string_view("half_pixel")},
                          {"mode", std::string_view("avg")},
                          {"output_height", int64_t{1}},
                          {"output_width", int64_t{1}},
                          {"sampling_ratio", int64_t{0}},
                          {"spatial_scale", 1.0f}},
           .infer = infer_roi_align,
           .cost = roi_cost,
           .kernels = typed<RoiAlign, float, double, Float16, BFloat16>(),
           .gradient = roi_align_gradient,
           .computes_by_elements = true},  // regions may have any size
          {.name = "RoiAlignGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kGradientTypes, "T"}, {"rois", kGradientTypes, "T"}, {"batch_indices", kInt64}, {"dY", kGradientTypes, "T"}},
           .outputs = {{"dX", kGradientTypes, "T"}},
           .attributes = {{"coordinate_transformation_mode", std::string_view("half_pixel")},
                          {"mode", std::string_view("avg")},
                          {"output_height", int64_t{1}},
                          {"output_width", int64_t{1}},
                          {"sampling_ratio", int64_t{0}},
                          {"spatial_scale", 1.0f}},
           .infer = infer_roi_grad,
           .kernels = typed<RoiAlignGrad, float, double>()},
          {.name = "MaxRoiPool",
           .since = {1, 22},
           .inputs = {{"X", kFloats, "T"}, {"rois", kFloats, "T"}},
           .outputs = {{"Y", kFloats, "T"}},
           .attributes = {{"pooled_shape", AttributeDef::Required{}}, {"spatial_scale", 1.0f}},
           .infer = infer_max_roi_pool,
           .cost = roi_cost,
           .kernels = typed<MaxRoiPool, float, double, Float16, BFloat16>(),
           .gradient = max_roi_pool_gradient},
          {.name = "MaxRoiPoolGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kGradientTypes, "T"}, {"rois", kGradientTypes, "T"}, {"dY", kGradientTypes, "T"}},
           .outputs = {{"dX", kGradientTypes, "T"}},
           .attributes = {{"pooled_shape", AttributeDef::Required{}}, {"spatial_scale", 1.0f}},
           .infer = infer_roi_grad,
           .kernels = typed<MaxRoiPoolGrad, float, double>()}};
}

}  // namespace treadle::ops
