// Codes of 8 bits and back.
#include <algorithm>
#include <cmath>

#include "tests/graphs/interpreter.h"

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

// Which scale belongs to an element: the only one, or that of its place along the axis.
size_t which_scale(Call& c, const Array& x, size_t at) {
  const Array& scale = c.in(1);
  if (scale.rank() == 0) return 0;
  const auto axis = static_cast<size_t>(normalise_axis(c.integer("axis", 1), x.rank()));
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

const OperatorTable kTable{
    {"QuantizeLinear", quantize_linear},
    {"DequantizeLinear", dequantize_linear},
    {"MatMulInteger", matmul_integer},
};

}  // namespace

const OperatorTable& quantised_operators() { return kTable; }

}  // namespace treadle::graphs
