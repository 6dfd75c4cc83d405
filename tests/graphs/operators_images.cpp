// Computes operators that enlarge images: ConvTranspose and Resize.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/graphs/interpreter.h"

namespace treadle::graphs {
namespace {

using Values = std::vector<Value>;

Values conv_transpose(Call& c) {
  const Array &x = c.in(0), &w = c.in(1);
  require(x.floats() && x.dtype == w.dtype && x.rank() >= 3 && w.rank() == x.rank(), "ConvTranspose's operands");
  const size_t rank = x.dims.size() - 2;
  const int64_t groups = c.integer("group", 1);
  require(x.dims[1] == w.dims[0] && x.dims[1] % groups == 0, "ConvTranspose's channels");
  const Dims strides = c.integers("strides", Dims(rank, 1)), dilations = c.integers("dilations", Dims(rank, 1)),
             more = c.integers("output_padding", Dims(rank, 0)), wanted = c.integers("output_shape", {});
  const std::string auto_pad = c.text("auto_pad", "NOTSET");
  const bool same = auto_pad.starts_with("SAME");
  Dims pads = auto_pad == "NOTSET" ? c.integers("pads", Dims(2 * rank, 0)) : Dims(2 * rank, 0);
  const int64_t outputs = w.dims[1] * groups, per_group = x.dims[1] / groups;
  if (c.has(2)) require(c.in(2).dims == Dims{outputs}, "ConvTranspose's bias");
  Dims dims{x.dims[0], outputs};
  for (size_t d = 0; d < rank; ++d) {
    require(more[d] < std::max(strides[d], dilations[d]), "output_padding as large as the stride");
    const int64_t whole = strides[d] * (x.dims[d + 2] - 1) + more[d] + (w.dims[d + 2] - 1) * dilations[d] + 1;
    if (same || !wanted.empty()) {  // the pads follow from the size that the node requests
      const int64_t total = whole - (wanted.empty() ? x.dims[d + 2] * strides[d] : wanted[d]);
      require(total >= 0, "an image larger than what the windows reach");
      pads[d] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
      pads[d + rank] = total - pads[d];
    }
    const int64_t extent = whole - pads[d] - pads[d + rank];
    require(extent > 0, "an image of nothing");
    dims.push_back(extent);
  }
  std::vector<Total> sums(static_cast<size_t>(count_of(dims)), Total(c.noise(), x.dtype));
  for (size_t i = 0; i < x.size(); ++i) {
    const Dims from = coordinates(i, x.dims);
    for (size_t k = 0; k < w.size() / static_cast<size_t>(w.dims[0]); ++k) {
      Dims tap = coordinates(k, Dims(w.dims.begin() + 1, w.dims.end()));
      Dims to{from[0], from[1] / per_group * w.dims[1] + tap[0]};
      bool inside = true;
      for (size_t d = 0; d < rank; ++d) {
        to.push_back(from[d + 2] * strides[d] - pads[d] + tap[d + 1] * dilations[d]);
        inside = inside && to.back() >= 0 && to.back() < dims[d + 2];
      }
      if (!inside) continue;
      tap.insert(tap.begin(), from[1]);
      sums[place(to, dims)].add(x.f[i] * w.f[place(tap, w.dims)]);
    }
  }
  Array y(x.dtype, dims);
  for (size_t k = 0; k < y.size(); ++k) {
    const double bias = c.has(2) ? c.in(2).f[static_cast<size_t>(coordinates(k, dims)[1])] : 0;
    y.set(k, c.noise()(sums[k].value() + bias, y.dtype, 4));
  }
  return {std::move(y)};
}

struct Tap {
  int64_t at;
  double weight;
};

// An axis that Resize changes. `begin` and `end` are the bounds of tf_crop_and_resize's region, as fractions of the axis.
struct ResizedAxis {
  int64_t in, out;
  double scale, begin = 0, end = 1;
};

double place_in_source(Call& c, const ResizedAxis& axis, int64_t to) {
  const std::string where = c.text("coordinate_transformation_mode", "half_pixel");
  const auto x = static_cast<double>(to), last = static_cast<double>(axis.in - 1), last_out = static_cast<double>(axis.out - 1);
  if (where == "half_pixel") return (x + 0.5) / axis.scale - 0.5;
  if (where == "pytorch_half_pixel") return axis.out > 1 ? (x + 0.5) / axis.scale - 0.5 : 0;
  if (where == "align_corners") return axis.out > 1 ? x * last / last_out : 0;
  if (where == "asymmetric") return x / axis.scale;
  if (where == "tf_crop_and_resize")
    return axis.out > 1 ? axis.begin * last + x * (axis.end - axis.begin) * last / last_out : 0.5 * (axis.begin + axis.end) * last;
  throw Invalid("a coordinate_transformation_mode that the interpreter does not know");
}

// Returns the weight of an element at this distance from the position.
double filter(Call& c, double distance) {
  const double d = std::fabs(distance);
  if (c.text("mode", "nearest") == "linear") return std::max(0.0, 1 - d);
  const double a = c.real("cubic_coeff_a", -0.75);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

// Returns the elements along an axis from which an output element is computed; none if it lies outside of the region.
std::vector<Tap> taps_of(Call& c, int64_t to, const ResizedAxis& axis) {
  double from = place_in_source(c, axis, to);
  // Positions are differences of numbers as large as `size`, so they may have rounding errors of that size.
  const double size = static_cast<double>(to) / axis.scale + 1;
  from += c.noise()(size, DType::float32, 2) - size;
  if (c.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize" &&
      (from < 0 || from > static_cast<double>(axis.in - 1)))
    return {};
  auto inside = [&](double at) { return std::clamp<int64_t>(static_cast<int64_t>(at), 0, axis.in - 1); };
  const std::string mode = c.text("mode", "nearest");
  if (mode == "nearest") {
    const std::string rounding = c.text("nearest_mode", "round_prefer_floor");
    if (rounding == "floor") return {{inside(std::floor(from)), 1}};
    if (rounding == "ceil") return {{inside(std::ceil(from)), 1}};
    if (rounding == "round_prefer_ceil") return {{inside(std::floor(from + 0.5)), 1}};
    return {{inside(std::ceil(from - 0.5)), 1}};
  }
  require(mode == "linear" || mode == "cubic", "Resize's mode");
  const bool antialias = c.integer("antialias", 0) != 0, drop = c.integer("exclude_outside", 0) != 0;
  const double stretch = antialias ? std::min(axis.scale, 1.0) : 1, reach = (mode == "linear" ? 1 : 2) / stretch;
  std::vector<Tap> taps;
  double total = 0;
  for (double at = std::floor(from) + std::floor(-reach) + 1; at <= std::floor(from) - std::floor(-reach); ++at) {
    const bool outside = at < 0 || at > static_cast<double>(axis.in - 1);
    taps.push_back({inside(at), drop && outside ? 0 : filter(c, (at - from) * stretch)});
    total += taps.back().weight;
  }
  require(!(antialias || drop) || std::fabs(total) > 1e-3, "weights that cancel");
  if (antialias || drop)
    for (Tap& tap : taps) tap.weight /= total;
  return taps;
}

Array resize_axis(Call& c, const Array& x, size_t d, const ResizedAxis& axis) {
  Dims dims = x.dims;
  dims[d] = axis.out;
  Array y(x.dtype, dims);
  for (int64_t to = 0; to < axis.out; ++to) {
    const std::vector<Tap> taps = taps_of(c, to, axis);
    for (size_t k = 0; k < y.size(); ++k) {
      Dims at = coordinates(k, dims);
      if (at[d] != to) continue;
      if (taps.empty()) {
        y.set(k, c.real("extrapolation_value", 0));
        continue;
      }
      Total sum(c.noise(), x.dtype);
      for (const Tap& tap : taps) {
        at[d] = tap.at;
        if (taps.size() == 1)
          y.copy(k, x, place(at, x.dims));
        else
          sum.add(x.f[place(at, x.dims)] * tap.weight);
      }
      if (taps.size() > 1) y.f[k] = sum.value();
    }
  }
  return y;
}

// Returns the axes as resized; keep_aspect_ratio_policy gives all of them one scale. `by_length`: positions are computed from the output
// length. ONNX's reference takes the unrounded length (extent times scale) there; ONNX Runtime takes the rounded one, as ONNX's text says.
std::vector<ResizedAxis> resized_axes(Call& c, const Array& x, const std::vector<size_t>& axes, bool by_length) {
  std::vector<ResizedAxis> result;
  const std::string policy = c.text("keep_aspect_ratio_policy", "stretch");
  double one = 0;
  for (size_t n = 0; n < axes.size(); ++n) {
    const auto in = static_cast<double>(x.dims[axes[n]]);
    require(in > 0, "an image of something");
    if (c.has(2)) {
      require(c.in(2).size() == axes.size() && c.in(2).f[n] > 0, "a scale for each axis");
      const double exact = in * c.in(2).f[n];
      require(!by_length || exact == std::floor(exact), "a length with parts of an element");
      result.push_back({x.dims[axes[n]], static_cast<int64_t>(std::floor(exact)), c.in(2).f[n]});
    } else {
      require(c.in(3).size() == axes.size() && c.in(3).i[n] > 0, "a size for each axis");
      result.push_back({x.dims[axes[n]], c.in(3).i[n], static_cast<double>(c.in(3).i[n]) / in});
    }
    if (c.has(1)) {
      require(c.in(1).size() == 2 * axes.size() && c.in(1).floats(), "two ends for each axis");
      result.back().begin = c.in(1).f[n], result.back().end = c.in(1).f[n + axes.size()];
    }
    const double scale = result.back().scale;
    one = n == 0 ? scale : policy == "not_larger" ? std::min(one, scale) : std::max(one, scale);
  }
  for (ResizedAxis& axis : result) {
    if (c.has(3) && policy != "stretch") {
      const double exact = one * static_cast<double>(axis.in);
      require(std::fabs(exact - std::floor(exact) - 0.5) > 1e-3, "half an element");
      require(!by_length || std::fabs(exact - std::round(exact)) < 1e-9, "a length with parts of an element");
      axis.out = static_cast<int64_t>(std::floor(exact + 0.5)), axis.scale = one;
    }
    require(axis.out > 0, "an image of nothing");
  }
  return result;
}

Values resize(Call& c) {
  Array x = c.in(0);
  require(x.floats() || c.text("mode", "nearest") == "nearest", "integers between two values");
  require(c.has(2) != c.has(3) && x.size() > 0, "either scales or sizes, of an image");
  const std::string where = c.text("coordinate_transformation_mode", "half_pixel");
  const bool crops = where == "tf_crop_and_resize";
  Dims every(x.dims.size());
  std::iota(every.begin(), every.end(), 0);
  std::vector<size_t> axes;
  for (int64_t axis : c.integers("axes", every)) axes.push_back(static_cast<size_t>(normalize_axis(axis, x.rank())));
  require(!crops || c.has(1), "what is cut out");
  const std::vector<ResizedAxis> resized = resized_axes(c, x, axes, crops || where == "align_corners");
  for (size_t n = 0; n < axes.size(); ++n) {
    const ResizedAxis& axis = resized[n];
    if (axis.out == axis.in && axis.scale == 1 && !(crops && (axis.begin != 0 || axis.end != 1))) continue;
    x = resize_axis(c, x, axes[n], axis);
  }
  if (x.floats())
    for (size_t k = 0; k < x.size(); ++k) x.set(k, c.text("mode", "nearest") == "nearest" ? x.f[k] : c.noise()(x.f[k], x.dtype, 4));
  return {std::move(x)};
}

const OperatorTable kTable{
    {"ConvTranspose", conv_transpose},
    {"Resize", resize},
};

}  // namespace

const OperatorTable& image_operators() { return kTable; }

}  // namespace treadle::graphs
