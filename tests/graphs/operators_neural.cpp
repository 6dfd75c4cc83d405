// Computes matrix products, convolutions, pools and normalisations.
#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/graphs/convolve.h"

namespace treadle::graphs {
namespace {

using Values = std::vector<Value>;

Values matmul(Call& c) {
  Array a = c.in(0), b = c.in(1);
  require(a.dtype == b.dtype && a.rank() > 0 && b.rank() > 0 && a.dtype != DType::boolean, "MatMul's operands");
  const bool row = a.rank() == 1, column = b.rank() == 1;
  if (row) a.dims.insert(a.dims.begin(), 1);
  if (column) b.dims.push_back(1);
  const int64_t m = a.dims[a.dims.size() - 2], k = a.dims.back(), n = b.dims.back();
  require(b.dims[b.dims.size() - 2] == k, "MatMul's inner extents differ");
  const Dims batch_a(a.dims.begin(), a.dims.end() - 2), batch_b(b.dims.begin(), b.dims.end() - 2), batch = broadcast(batch_a, batch_b);
  Dims dims = batch;
  dims.push_back(m);
  dims.push_back(n);
  Array y(a.dtype, dims);
  for (size_t at = 0; at < y.size(); ++at) {
    const auto size = static_cast<size_t>(m * n);
    const size_t group = at / size, i = at % size / static_cast<size_t>(n), j = at % static_cast<size_t>(n);
    const size_t ga = broadcast_index(group, batch, batch_a), gb = broadcast_index(group, batch, batch_b);
    Total sum(c.noise(), a.dtype);
    for (size_t p = 0; p < static_cast<size_t>(k); ++p)
      sum.add(a.number((ga * static_cast<size_t>(m) + i) * static_cast<size_t>(k) + p) *
              b.number((gb * static_cast<size_t>(k) + p) * static_cast<size_t>(n) + j));
    y.set(at, c.noise()(sum.value(), y.dtype));
  }
  if (column) y.dims.pop_back();
  if (row) y.dims.erase(y.dims.end() - (column ? 1 : 2));
  return {std::move(y)};
}

Values gemm(Call& c) {
  const Array &a = c.in(0), &b = c.in(1);
  require(a.rank() == 2 && b.rank() == 2 && a.dtype == b.dtype && a.floats(), "Gemm's operands");
  const bool ta = c.integer("transA", 0) != 0, tb = c.integer("transB", 0) != 0;
  const int64_t m = a.dims[ta ? 1 : 0], k = a.dims[ta ? 0 : 1], n = b.dims[tb ? 0 : 1];
  require(b.dims[tb ? 1 : 0] == k, "Gemm's inner extents differ");
  Array y(a.dtype, {m, n});
  for (size_t at = 0; at < y.size(); ++at) {
    const Dims ij = coordinates(at, y.dims);
    Total sum(c.noise(), a.dtype);
    for (int64_t p = 0; p < k; ++p)
      sum.add(c.real("alpha", 1) * a.f[place(ta ? Dims{p, ij[0]} : Dims{ij[0], p}, a.dims)] *
              b.f[place(tb ? Dims{ij[1], p} : Dims{p, ij[1]}, b.dims)]);
    if (c.has(2)) {
      require(c.in(2).dtype == a.dtype && broadcast(c.in(2).dims, y.dims) == y.dims, "Gemm's C");
      sum.add(c.real("beta", 1) * c.in(2).f[broadcast_index(at, y.dims, c.in(2).dims)]);
    }
    y.set(at, c.noise()(sum.value(), y.dtype));
  }
  return {std::move(y)};
}

// The window that convolutions and pools slide over an image.
struct Window {
  Dims kernel, strides, dilations, pads;

  Window(Call& c, const Array& x, const Dims& kernel_shape) : kernel(kernel_shape) {
    const size_t rank = kernel.size();
    require(x.dims.size() == rank + 2, "an image of another rank");
    strides = c.integers("strides", Dims(rank, 1));
    dilations = c.integers("dilations", Dims(rank, 1));
    pads = c.integers("pads", Dims(2 * rank, 0));
    require(strides.size() == rank && dilations.size() == rank && pads.size() == 2 * rank, "the window's attributes");
  }
  int64_t output_extent(const Array& x, size_t d) const {
    const int64_t padded = x.dims[d + 2] + pads[d] + pads[d + kernel.size()], reach = (kernel[d] - 1) * dilations[d] + 1;
    require(padded >= reach, "the window is larger than the image");
    return (padded - reach) / strides[d] + 1;
  }
  // Calls f(place in the kernel, coordinates in the image) for each place in the window of `at` (N, C, spatial) that lies inside the image.
  void visit(const Array& x, const Dims& at, const std::function<void(const Dims&, const Dims&)>& f) const {
    for (size_t k = 0; k < static_cast<size_t>(count_of(kernel)); ++k) {
      const Dims tap = coordinates(k, kernel);
      Dims from(x.dims.size());
      bool inside = true;
      for (size_t d = 0; d < kernel.size(); ++d) {
        from[d + 2] = at[d + 2] * strides[d] - pads[d] + tap[d] * dilations[d];
        inside = inside && from[d + 2] >= 0 && from[d + 2] < x.dims[d + 2];
      }
      if (inside) f(tap, from);
    }
  }
};

}  // namespace

Array convolve(Call& c, const Array& x, const Array& w, DType dtype, double x_zero, const std::function<double(int64_t)>& w_zero) {
  require(x.rank() >= 3 && w.rank() == x.rank(), "Conv's ranks");
  const int64_t groups = c.integer("group", 1), per_group = w.dims[0] / groups;
  require(w.dims[0] % groups == 0 && x.dims[1] == w.dims[1] * groups, "Conv's channels");
  const Window window(c, x, Dims(w.dims.begin() + 2, w.dims.end()));
  Dims dims{x.dims[0], w.dims[0]};
  for (size_t d = 0; d < window.kernel.size(); ++d) dims.push_back(window.output_extent(x, d));
  Array y(dtype, dims);
  for (size_t k = 0; k < y.size(); ++k) {
    const Dims at = coordinates(k, dims);
    Total sum(c.noise(), dtype);
    window.visit(x, at, [&](const Dims& tap, Dims from) {
      Dims weight{at[1], 0};
      weight.insert(weight.end(), tap.begin(), tap.end());
      from[0] = at[0];
      for (weight[1] = 0; weight[1] < w.dims[1]; ++weight[1]) {
        from[1] = at[1] / per_group * w.dims[1] + weight[1];
        sum.add((x.number(place(from, x.dims)) - x_zero) * (w.number(place(weight, w.dims)) - w_zero(at[1])));
      }
    });
    if (y.floats())
      y.f[k] = sum.value();  // not rounded: the caller rounds after adding the bias
    else
      y.set(k, sum.value());
  }
  return y;
}

namespace {

Values conv(Call& c) {
  const Array &x = c.in(0), &w = c.in(1);
  require(x.floats() && x.dtype == w.dtype, "Conv's dtypes");
  Array y = convolve(c, x, w, x.dtype, 0, [](int64_t) { return 0.0; });
  const Dims dims = y.dims;
  for (size_t k = 0; k < y.size(); ++k) {
    const double bias = c.has(2) ? c.in(2).f.at(static_cast<size_t>(coordinates(k, dims)[1])) : 0;
    if (c.has(2)) require(c.in(2).dims == Dims{w.dims[0]}, "Conv's bias");
    // Allows several roundings, as in Winograd's algorithm.
    y.set(k, c.noise()(y.f[k] + bias, y.dtype, 4));
  }
  return {std::move(y)};
}

Values conv_integer(Call& c) {
  const double x_zero = c.has(2) ? c.in(2).number(0) : 0;
  const Array* w_zero = c.has(3) ? &c.in(3) : nullptr;
  require(w_zero == nullptr || w_zero->size() == 1 || w_zero->dims == Dims{c.in(1).dims.at(0)}, "one zero point, or one for each filter");
  return {convolve(c, c.in(0), c.in(1), DType::int32, x_zero, [&](int64_t filter) {
    return w_zero == nullptr ? 0 : w_zero->number(w_zero->size() == 1 ? 0 : static_cast<size_t>(filter));
  })};
}

Values pool(Call& c, bool largest) {
  const Array& x = c.in(0);
  require(x.floats() && x.rank() >= 3, "a float image was expected");
  if (largest) require_ordered(x);
  const Window window(c, x, c.integers("kernel_shape"));
  Dims dims{x.dims[0], x.dims[1]};
  for (size_t d = 0; d < window.kernel.size(); ++d) {
    require(window.pads[d] < window.kernel[d] && window.pads[d + window.kernel.size()] < window.kernel[d], "pads as large as the window");
    dims.push_back(window.output_extent(x, d));
  }
  Array y(x.dtype, dims);
  for (size_t k = 0; k < y.size(); ++k) {
    const Dims at = coordinates(k, dims);
    Total sum(c.noise(), x.dtype);
    double best = 0;
    int count = 0;
    window.visit(x, at, [&](const Dims&, Dims from) {
      from[0] = at[0];
      from[1] = at[1];
      const double element = x.f[place(from, x.dims)];
      best = count == 0 ? element : std::max(best, element);
      sum.add(element);
      ++count;
    });
    require(count > 0, "a window over nothing");
    const auto taps = static_cast<double>(c.integer("count_include_pad", 0) != 0 ? count_of(window.kernel) : count);
    y.set(k, largest ? best : c.noise()(sum.value() / taps, x.dtype));
  }
  return {std::move(y)};
}

Values global_pool(Call& c, bool largest) {
  const Array& x = c.in(0);
  require(x.floats() && x.rank() >= 3, "a float image was expected");
  if (largest) require_ordered(x);
  Dims dims(x.dims.size(), 1);
  dims[0] = x.dims[0];
  dims[1] = x.dims[1];
  Array y(x.dtype, dims);
  require(x.size() > 0, "a pool of nothing");
  const size_t pixels = x.size() / y.size();
  for (size_t k = 0; k < y.size(); ++k) {
    Total sum(c.noise(), x.dtype);
    double best = x.f[k * pixels];
    for (size_t p = 0; p < pixels; ++p) {
      sum.add(x.f[k * pixels + p]);
      best = std::max(best, x.f[k * pixels + p]);
    }
    y.set(k, largest ? best : c.noise()(sum.value() / static_cast<double>(pixels), x.dtype));
  }
  return {std::move(y)};
}

// Writes (x - mean) / sqrt(variance + epsilon) of the elements at `places` to y.
void normalize(Call& c, const Array& x, const std::vector<size_t>& places, double epsilon, Array& y) {
  const auto n = static_cast<double>(places.size());
  Total sum(c.noise(), x.dtype), squares(c.noise(), x.dtype);
  for (size_t at : places) sum.add(x.f[at]);
  const double mean = c.noise()(sum.value() / n, x.dtype);  // the mean is rounded to the dtype, because an element may be equal to it
  for (size_t at : places) squares.add((x.f[at] - mean) * (x.f[at] - mean));
  const double variance = squares.value() / n;
  for (size_t at : places) y.f[at] = c.noise()((x.f[at] - mean) / std::sqrt(variance + epsilon), x.dtype, 4);
}

void scale_and_shift(Call& c, Array& y, const Array& scale, const Array* bias, const std::function<size_t(size_t)>& which) {
  for (size_t k = 0; k < y.size(); ++k) {
    const double b = bias != nullptr ? bias->f.at(which(k)) : 0;
    y.set(k, c.noise()(c.noise()(y.f[k] * scale.f.at(which(k)), y.dtype) + b, y.dtype));
  }
}

Values layer_normalization(Call& c) {
  const Array &x = c.in(0), &scale = c.in(1);
  require(x.floats() && scale.dtype == x.dtype, "LayerNormalization's dtypes");
  const auto axis = static_cast<size_t>(normalize_axis(c.integer("axis", -1), x.rank()));
  const Dims inner(x.dims.begin() + static_cast<int64_t>(axis), x.dims.end());
  require(scale.dims == inner && (!c.has(2) || c.in(2).dims == inner), "the scale's shape");
  const auto length = static_cast<size_t>(count_of(inner));
  require(length > 0 && c.num_outputs() == 1, "one output, of rows");
  Array y(x.dtype, x.dims);
  for (size_t row = 0; row < x.size() / length; ++row) {
    std::vector<size_t> places(length);
    for (size_t k = 0; k < length; ++k) places[k] = row * length + k;
    normalize(c, x, places, c.real("epsilon", 1e-5), y);
  }
  scale_and_shift(c, y, scale, c.has(2) ? &c.in(2) : nullptr, [&](size_t k) { return k % length; });
  return {std::move(y)};
}

size_t channel_of(size_t at, const Array& x) { return x.rank() > 1 ? static_cast<size_t>(coordinates(at, x.dims)[1]) : 0; }

Values batch_normalization(Call& c) {
  const Array& x = c.in(0);
  require(x.floats() && x.rank() >= 2 && c.num_outputs() == 1, "BatchNormalization's operands");
  for (size_t i = 1; i < 5; ++i) require(c.in(i).dims == Dims{x.dims[1]} && c.in(i).dtype == x.dtype, "one number per channel");
  Array y(x.dtype, x.dims);
  for (size_t k = 0; k < x.size(); ++k) {
    const size_t channel = channel_of(k, x);
    require(c.in(4).f[channel] >= 0, "a negative variance");
    const double factor = c.in(1).f[channel] / std::sqrt(c.in(4).f[channel] + c.real("epsilon", 1e-5));
    // An implementation may fold the formula into a factor and a term. Both may be larger than their sum, and so may their errors.
    const double scaled = c.noise()(x.f[k] * factor, x.dtype, 4), shift = c.noise()(c.in(3).f[channel] * factor, x.dtype, 4);
    y.set(k, scaled - shift + c.noise()(c.in(2).f[channel], x.dtype, 2));
  }
  return {std::move(y)};
}

// Normalises each image's groups of channels; InstanceNormalization has groups of one.
Array normalize_groups(Call& c, const Array& x, int64_t groups) {
  require(x.floats() && x.rank() >= 3 && x.size() > 0 && x.dims[1] % groups == 0, "channels in groups");
  Array y(x.dtype, x.dims);
  const size_t length = x.size() / static_cast<size_t>(x.dims[0] * groups);
  for (size_t row = 0; row < x.size() / length; ++row) {
    std::vector<size_t> places(length);
    for (size_t k = 0; k < length; ++k) places[k] = row * length + k;
    normalize(c, x, places, c.real("epsilon", 1e-5), y);
  }
  return y;
}

Values instance_normalization(Call& c) {
  const Array& x = c.in(0);
  Array y = normalize_groups(c, x, x.dims.at(1));
  for (size_t i : {size_t{1}, size_t{2}}) require(c.in(i).dims == Dims{x.dims[1]} && c.in(i).dtype == x.dtype, "one number per channel");
  scale_and_shift(c, y, c.in(1), &c.in(2), [&](size_t k) { return channel_of(k, x); });
  return {std::move(y)};
}

Values group_normalization(Call& c) {
  const Array& x = c.in(0);
  Array y = normalize_groups(c, x, c.integer("num_groups", 1));
  for (size_t i : {size_t{1}, size_t{2}}) require(c.in(i).dims == Dims{x.dims[1]} && c.in(i).dtype == x.dtype, "one number per channel");
  scale_and_shift(c, y, c.in(1), &c.in(2), [&](size_t k) { return channel_of(k, x); });
  return {std::move(y)};
}

const OperatorTable kTable{
    {"GroupNormalization", group_normalization},
    {"MatMul", matmul},
    {"Gemm", gemm},
    {"Conv", conv},
    {"ConvInteger", conv_integer},
    {"MaxPool", [](Call& c) { return pool(c, true); }},
    {"AveragePool", [](Call& c) { return pool(c, false); }},
    {"GlobalMaxPool", [](Call& c) { return global_pool(c, true); }},
    {"GlobalAveragePool", [](Call& c) { return global_pool(c, false); }},
    {"LayerNormalization", layer_normalization},
    {"BatchNormalization", batch_normalization},
    {"InstanceNormalization", instance_normalization},
};

}  // namespace

const OperatorTable& neural_operators() { return kTable; }

}  // namespace treadle::graphs
