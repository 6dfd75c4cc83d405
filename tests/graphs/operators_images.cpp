// Images that grow: ConvTranspose and Resize.
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
    if (same || !wanted.empty()) {  // what the image is to lose says how much is cut away at both ends
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

// Which elements along an axis an output element is made of.
std::vector<Tap> taps_of(Call& c, int64_t to, int64_t in, int64_t out, double scale) {
  const std::string where = c.text("coordinate_transformation_mode", "half_pixel"), mode = c.text("mode", "nearest");
  const auto x = static_cast<double>(to);
  double from = 0;
  if (where == "half_pixel")
    from = (x + 0.5) / scale - 0.5;
  else if (where == "pytorch_half_pixel")
    from = out > 1 ? (x + 0.5) / scale - 0.5 : 0;
  else if (where == "align_corners")
    from = out > 1 ? x * static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  else if (where == "asymmetric")
    from = x / scale;
  else
    throw Invalid("a coordinate_transformation_mode that the interpreter does not know");
  // Places are differences of numbers of the size of x.
  from += c.noise()(x / scale + 1, DType::float32, 2) - (x / scale + 1);
  auto inside = [&](double at) { return std::clamp<int64_t>(static_cast<int64_t>(at), 0, in - 1); };
  if (mode == "nearest") {
    const std::string rounding = c.text("nearest_mode", "round_prefer_floor");
    if (rounding == "floor") return {{inside(std::floor(from)), 1}};
    if (rounding == "ceil") return {{inside(std::ceil(from)), 1}};
    if (rounding == "round_prefer_ceil") return {{inside(std::floor(from + 0.5)), 1}};
    return {{inside(std::ceil(from - 0.5)), 1}};
  }
  const double floor = std::floor(from), part = from - floor;
  if (mode == "linear") return {{inside(floor), 1 - part}, {inside(floor + 1), part}};
  require(mode == "cubic", "Resize's mode");
  const double a = c.real("cubic_coeff_a", -0.75);
  auto near = [&](double s) { return ((a + 2) * s - (a + 3)) * s * s + 1; };
  auto far = [&](double s) { return ((a * s - 5 * a) * s + 8 * a) * s - 4 * a; };
  return {{inside(floor - 1), far(1 + part)},
          {inside(floor), near(part)},
          {inside(floor + 1), near(1 - part)},
          {inside(floor + 2), far(2 - part)}};
}

Values resize(Call& c) {
  Array x = c.in(0);
  require(x.floats() || c.text("mode", "nearest") == "nearest", "integers between two values");
  require(c.has(2) != c.has(3) && x.size() > 0, "either scales or sizes, of an image");
  Dims every(x.dims.size());
  std::iota(every.begin(), every.end(), 0);
  const Dims axes = c.integers("axes", every);
  for (size_t n = 0; n < axes.size(); ++n) {
    const auto d = static_cast<size_t>(axes[n] < 0 ? axes[n] + x.rank() : axes[n]);
    const int64_t in = x.dims[d];
    double scale = 1;
    int64_t out = in;
    if (c.has(2)) {
      require(c.in(2).size() == axes.size() && c.in(2).f[n] > 0, "a scale for each axis");
      scale = c.in(2).f[n];
      out = static_cast<int64_t>(std::floor(static_cast<double>(in) * scale));
    } else {
      require(c.in(3).size() == axes.size() && c.in(3).i[n] > 0, "a size for each axis");
      out = c.in(3).i[n];
      scale = static_cast<double>(out) / static_cast<double>(in);
    }
    require(out > 0, "an image of nothing");
    if (out == in && scale == 1) continue;
    Dims dims = x.dims;
    dims[d] = out;
    Array y(x.dtype, dims);
    for (int64_t to = 0; to < out; ++to) {
      const std::vector<Tap> taps = taps_of(c, to, in, out, scale);
      for (size_t k = 0; k < y.size(); ++k) {
        Dims at = coordinates(k, dims);
        if (at[d] != to) continue;
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
    x = std::move(y);
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
