// Computes quantisation to codes of 8 bits, and back.
#include <algorithm>
#include <cmath>

#include "tests/graphs/convolve.h"

namespace treadle::graphs {
namespace {

using Values = std::vector<Value>;

std::pair<double, double> bounds_of(DType dtype) {
  switch (dtype) {
    case DType::uint8: return {0, 255};
    case DType::int8: return {-128, 127};
    case DType::uint16: return {0, 65535};
    case DType::int16: return {-32768, 32767};
    default: throw Invalid("codes of 8 or 16 bits were expected");
  }
}

// Returns the index of an element's scale: 0 if there is only one scale, otherwise the element's index along the axis.
size_t which_scale(Call& c, const Array& x, size_t at) {
  const Array& scale = c.in(1);
  if (scale.rank() == 0) return 0;
  const auto axis = static_cast<size_t>(normalize_axis(c.integer("axis", 1), x.rank()));
  require(scale.dims == Dims{x.dims[axis]}, "one scale along the axis");
  return static_cast<size_t>(coordinates(at, x.dims)[axis]);
}

Values quantize_linear(Call& c) {
  const Array &x = c.in(0), &scale = c.in(1);
  require(x.floats() && scale.dtype == x.dtype && (!c.has(2) || c.in(2).dims == scale.dims), "QuantizeLinear's operands");
  Array y(c.has(2) ? c.in(2).dtype : DType::uint8, x.dims);
  const auto [low, high] = bounds_of(y.dtype);
  for (size_t k = 0; k < x.size(); ++k) {
    const size_t s = which_scale(c, x, k);
    const double zero = c.has(2) ? c.in(2).number(s) : 0;
    require(!std::isnan(x.f[k] / scale.f[s]), "a code of NaN");
    y.i[k] = static_cast<int64_t>(std::clamp(std::nearbyint(c.noise()(x.f[k] / scale.f[s], x.dtype, 2)) + zero, low, high));
  }
  return {std::move(y)};
}

Values dequantize_linear(Call& c) {
  const Array &x = c.in(0), &scale = c.in(1);
  require(!x.floats() && scale.floats() && (!c.has(2) || (c.in(2).dims == scale.dims && c.in(2).dtype == x.dtype)),
          "DequantizeLinear's operands");
  Array y(scale.dtype, x.dims);
  for (size_t k = 0; k < x.size(); ++k) {
    const size_t s = which_scale(c, x, k);
    y.set(k, c.noise()((x.number(k) - (c.has(2) ? c.in(2).number(s) : 0)) * scale.f[s], y.dtype));
  }
  return {std::move(y)};
}

Values matmul_integer(Call& c) {
  const Array &a = c.in(0), &b = c.in(1);
  require(a.rank() == 2 && b.rank() == 2 && a.dims[1] == b.dims[0], "two matrices");
  const int64_t a_zero = c.has(2) ? c.in(2).i.at(0) : 0, b_zero = c.has(3) ? c.in(3).i.at(0) : 0;
  Array y(DType::int32, {a.dims[0], b.dims[1]});
  for (size_t k = 0; k < y.size(); ++k) {
    const Dims at = coordinates(k, y.dims);
    for (int64_t p = 0; p < a.dims[1]; ++p) y.i[k] += (a.i[place({at[0], p}, a.dims)] - a_zero) * (b.i[place({p, at[1]}, b.dims)] - b_zero);
  }
  return {std::move(y)};
}

// Returns the code of an integer sum, where `scale` is the value of one unit of the sum.
int64_t requantized(Call& c, double sum, double scale, double zero, DType dtype) {
  const auto [low, high] = bounds_of(dtype);
  return static_cast<int64_t>(std::clamp(std::nearbyint(c.noise()(sum * scale, DType::float32, 3)) + zero, low, high));
}

// Multiplies a matrix, or each matrix of a batch, by one matrix.
Values qlinear_matmul(Call& c) {
  const Array &a = c.in(0), &b = c.in(3);
  require(a.rank() >= 2 && b.rank() == 2 && a.dims.back() == b.dims[0], "two matrices");
  for (size_t i : {1, 2, 4, 5, 6, 7}) require(c.in(i).size() == 1, "one scale and one zero point");
  const double a_zero = c.in(2).number(0), b_zero = c.in(5).number(0), scale = c.in(1).f[0] * c.in(4).f[0] / c.in(6).f[0];
  Dims dims = a.dims;
  dims.back() = b.dims[1];
  Array y(c.in(7).dtype, dims);
  const auto depth = static_cast<size_t>(b.dims[0]), columns = static_cast<size_t>(b.dims[1]);
  for (size_t k = 0; k < y.size(); ++k) {
    double sum = 0;
    for (size_t p = 0; p < depth; ++p) sum += (a.number(k / columns * depth + p) - a_zero) * (b.number(p * columns + k % columns) - b_zero);
    y.i[k] = requantized(c, sum, scale, c.in(7).number(0), y.dtype);
  }
  return {std::move(y)};
}

Values qlinear_conv(Call& c) {
  const Array &x = c.in(0), &w = c.in(3), &w_scale = c.in(4), &w_zero = c.in(5);
  for (size_t i : {1, 2, 6, 7}) require(c.in(i).size() == 1, "one scale and one zero point");
  require(w_scale.size() == 1 || w_scale.dims == Dims{w.dims[0]}, "a scale for each filter");
  auto of_filter = [](const Array& all, int64_t filter) { return all.number(all.size() == 1 ? 0 : static_cast<size_t>(filter)); };
  const Array sums = convolve(c, x, w, DType::int32, c.in(2).number(0), [&](int64_t filter) { return of_filter(w_zero, filter); });
  Array y(c.in(7).dtype, sums.dims);
  for (size_t k = 0; k < y.size(); ++k) {
    const int64_t filter = coordinates(k, y.dims)[1];
    const double bias = c.has(8) ? c.in(8).number(static_cast<size_t>(filter)) : 0;
    y.i[k] = requantized(c, sums.number(k) + bias, c.in(1).f[0] * of_filter(w_scale, filter) / c.in(6).f[0], c.in(7).number(0), y.dtype);
  }
  return {std::move(y)};
}

Values dynamic_quantize_linear(Call& c) {
  const Array& x = c.in(0);
  require(x.dtype == DType::float32 && x.size() > 0, "DynamicQuantizeLinear's operand");
  double low = 0, high = 0;
  for (double value : x.f) low = std::min(low, value), high = std::max(high, value);
  require(high - low > 1e-3, "a range of nothing");
  Array y(DType::uint8, x.dims), scale(DType::float32, {}), zero(DType::uint8, {});
  scale.set(0, c.noise()((high - low) / 255, DType::float32));
  zero.i[0] = static_cast<int64_t>(std::clamp(std::nearbyint(c.noise()(-low / scale.f[0], DType::float32)), 0.0, 255.0));
  for (size_t k = 0; k < x.size(); ++k) y.i[k] = requantized(c, x.f[k], 1 / scale.f[0], zero.number(0), y.dtype);
  return {std::move(y), std::move(scale), std::move(zero)};
}

const OperatorTable kTable{
    {"QLinearMatMul", qlinear_matmul},   {"QLinearConv", qlinear_conv},           {"DynamicQuantizeLinear", dynamic_quantize_linear},
    {"QuantizeLinear", quantize_linear}, {"DequantizeLinear", dequantize_linear}, {"MatMulInteger", matmul_integer},
};

}  // namespace

const OperatorTable& quantized_operators() { return kTable; }

}  // namespace treadle::graphs
