// Operators that compute each element from the elements at the same place.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/graphs/interpreter.h"

namespace treadle::graphs {
namespace {

// Applies f to every element of input 0.
// @param ulps  the error that an implementation may make, in units in the last place
// @param limit no result has a larger magnitude, though one may reach it
template <typename F>
std::vector<Value> each(Call& c, double ulps, F f, double limit = std::numeric_limits<double>::infinity()) {
  const Array& x = c.in(0);
  Array y(x.dtype, x.dims);
  for (size_t k = 0; k < x.size(); ++k) {
    if (x.floats())
      y.set(k, std::clamp(c.noise()(f(x.f[k]), x.dtype, ulps), -limit, limit));
    else
      y.set(k, static_cast<int64_t>(f(static_cast<double>(x.i[k]))));
  }
  return {std::move(y)};
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

// Rounds a term of a sum with at least float32's precision; the sum may be much smaller than the term.
double term(Call& c, double value) {
  const DType dtype = c.in(0).dtype;
  return c.noise()(value, dtype == DType::float64 ? dtype : DType::float32, 4);
}

double gelu(Call& c, double x) {
  if (c.text("approximate", "none") == "none") return 0.5 * x * (1 + term(c, std::erf(x / std::sqrt(2.0))));
  return 0.5 * x * (1 + term(c, std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))));
}

double round_even(double x) { return std::nearbyint(x); }
double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }

// Computes y = f(a, b) with broadcasting: floats by `f`, integers by `g`. The result has the dtype of the inputs.
template <typename F, typename G>
Array combine(Call& c, const Array& a, const Array& b, double ulps, F f, G g) {
  require(a.dtype == b.dtype, "the operands' dtypes differ");
  Array y(a.dtype, broadcast(a.dims, b.dims));
  for (size_t k = 0; k < y.size(); ++k) {
    const size_t ka = broadcast_index(k, y.dims, a.dims), kb = broadcast_index(k, y.dims, b.dims);
    if (a.floats())
      y.set(k, c.noise()(f(a.f[ka], b.f[kb]), a.dtype, ulps));
    else
      y.set(k, static_cast<int64_t>(g(a.i[ka], b.i[kb])));
  }
  return y;
}

template <typename F, typename G>
std::vector<Value> binary(Call& c, double ulps, F f, G g) {
  return {combine(c, c.in(0), c.in(1), ulps, f, g)};
}

// Applies f to integers, which wrap around on overflow: computes on the same bits as unsigned numbers.
template <typename F>
auto wrapping(F f) {
  return [f](int64_t a, int64_t b) { return static_cast<int64_t>(f(static_cast<uint64_t>(a), static_cast<uint64_t>(b))); };
}

template <typename F>
std::vector<Value> arithmetic(Call& c, F f) {
  require(c.in(0).dtype != DType::boolean, "no arithmetic on bool");
  return binary(c, 1, f, wrapping(f));
}

std::vector<Value> divide(Call& c) {
  return binary(
      c, 1, [](double a, double b) { return a / b; },
      [](int64_t a, int64_t b) {
        require(b != 0 && a != INT64_MIN, "division by zero, or overflow");
        return a / b;
      });
}

// The result for integers has the sign of the divisor. With fmod = 1, and for floats, it has the sign of the dividend.
std::vector<Value> modulo(Call& c) {
  const bool fmod = c.integer("fmod", 0) != 0;
  require(fmod || !c.in(0).floats(), "floats need fmod=1");
  return binary(
      c, 1, [](double a, double b) { return std::fmod(a, b); },
      [fmod](int64_t a, int64_t b) {
        require(b != 0 && a != INT64_MIN, "division by zero, or overflow");
        const int64_t rest = a % b;
        return !fmod && rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
      });
}

std::vector<Value> power(Call& c) {
  const Array &x = c.in(0), &y = c.in(1);
  Array z(x.dtype, broadcast(x.dims, y.dims));
  for (size_t k = 0; k < z.size(); ++k) {
    const double base = x.number(broadcast_index(k, z.dims, x.dims)), exponent = y.number(broadcast_index(k, z.dims, y.dims));
    const double result = std::pow(base, exponent);
    require(x.floats() || (std::fabs(result) < 1e9 && exponent >= 0), "an integer power out of range");
    z.set(k, c.noise()(result, z.dtype, 4));
  }
  return {std::move(z)};
}

// Computes Max, Min, Sum or Mean of any number of inputs.
template <typename F>
Array fold(Call& c, double ulps, F f) {
  Array total = c.in(0);
  require(total.dtype != DType::boolean, "no arithmetic on bool");
  for (size_t i = 1; i < c.num_inputs(); ++i) {
    if (!total.unrounded.empty() && c.noise().keeps_precision()) total = total.as_computed();  // partial results may stay unrounded
    total = combine(c, total, c.in(i), ulps, f, f);
  }
  return total;
}

template <typename T>
T max_of(T a, T b) {
  if (a != a || b != b) return a + b;
  return std::max(a, b);
}
template <typename T>
T min_of(T a, T b) {
  if (a != a || b != b) return a + b;
  return std::min(a, b);
}

std::vector<Value> mean(Call& c) {
  Array total = fold(c, 1, std::plus<>());
  require(total.floats(), "Mean takes floats");
  for (double& x : total.f) x = round_to(total.dtype, x / static_cast<double>(c.num_inputs()));
  return {std::move(total)};
}

template <typename F>
std::vector<Value> compare(Call& c, F f) {
  const Array &a = c.in(0), &b = c.in(1);
  require(a.dtype == b.dtype, "the operands' dtypes differ");
  require(a.dtype != DType::boolean || c.op() == "Equal", "bool has no order");
  Array y(DType::boolean, broadcast(a.dims, b.dims));
  for (size_t k = 0; k < y.size(); ++k) {
    const size_t ka = broadcast_index(k, y.dims, a.dims), kb = broadcast_index(k, y.dims, b.dims);
    y.i[k] = a.texts() ? a.s[ka] == b.s[kb] : a.floats() ? f(a.f[ka], b.f[kb]) : f(a.i[ka], b.i[kb]);
  }
  return {std::move(y)};
}

std::vector<Value> string_concat(Call& c) {
  const Array &a = c.in(0), &b = c.in(1);
  require(a.texts() && b.texts(), "strings were expected");
  Array y(DType::string, broadcast(a.dims, b.dims));
  for (size_t k = 0; k < y.size(); ++k) y.s[k] = a.s[broadcast_index(k, y.dims, a.dims)] + b.s[broadcast_index(k, y.dims, b.dims)];
  return {std::move(y)};
}

template <typename F>
std::vector<Value> logical(Call& c, F f) {
  require(c.in(0).dtype == DType::boolean, "bool was expected");
  return {combine(
      c, c.in(0), c.in(1), 0, [](double, double) { return 0.0; }, f)};
}

template <typename F>
std::vector<Value> bitwise(Call& c, F f) {
  require(!c.in(0).floats() && c.in(0).dtype != DType::boolean, "integers were expected");
  return {combine(
      c, c.in(0), c.in(1), 0, [](double, double) { return 0.0; }, f)};
}

std::vector<Value> where(Call& c) {
  const Array &condition = c.in(0), &a = c.in(1), &b = c.in(2);
  require(condition.dtype == DType::boolean && a.dtype == b.dtype, "Where's dtypes");
  Array y(a.dtype, broadcast(broadcast(condition.dims, a.dims), b.dims));
  for (size_t k = 0; k < y.size(); ++k) {
    const Array& from = condition.i[broadcast_index(k, y.dims, condition.dims)] != 0 ? a : b;
    y.copy(k, from, broadcast_index(k, y.dims, from.dims));
  }
  return {std::move(y)};
}

std::vector<Value> clip(Call& c) {
  Array y = c.in(0);
  for (size_t bound : {size_t{1}, size_t{2}}) {
    if (!c.has(bound)) continue;
    require(c.in(bound).dtype == y.dtype && c.in(bound).size() == 1, "a bound of Clip");
    const bool low = bound == 1;
    for (double& x : y.f) x = low ? max_of(x, c.in(bound).f[0]) : min_of(x, c.in(bound).f[0]);
    for (int64_t& x : y.i) x = low ? max_of(x, c.in(bound).i[0]) : min_of(x, c.in(bound).i[0]);
  }
  return {std::move(y)};
}

std::vector<Value> cast(Call& c) {
  const Array& x = c.in(0);
  Array y(static_cast<DType>(c.integer("to", 1)), x.dims);
  for (size_t k = 0; k < x.size(); ++k) {
    if (!x.floats()) {
      y.set(k, x.i[k]);
    } else if (y.floats()) {
      const bool narrows = epsilon_of(y.dtype) > epsilon_of(x.dtype);
      y.set(k, narrows ? c.noise()(x.f[k], y.dtype) : x.f[k]);
    } else {
      // The result of a conversion is only defined if every integer type except the narrowest can represent the number.
      require(y.dtype == DType::boolean || (std::fabs(x.f[k]) < 127 && (is_signed_integer(y.dtype) || x.f[k] > -1)), "Cast out of range");
      y.set(k, x.f[k]);
    }
  }
  return {std::move(y)};
}

std::vector<Value> prelu(Call& c) {
  auto f = [](auto x, auto slope) { return x < 0 ? x * slope : x; };
  require(broadcast(c.in(0).dims, c.in(1).dims) == c.in(0).dims, "the slope must broadcast to X");
  return binary(c, 1, f, f);
}

std::vector<Value> is_nan(Call& c) {
  Array y(DType::boolean, c.in(0).dims);
  for (size_t k = 0; k < y.size(); ++k) y.i[k] = std::isnan(c.in(0).f[k]);
  return {std::move(y)};
}

std::vector<Value> logical_not(Call& c) {
  require(c.in(0).dtype == DType::boolean, "bool was expected");
  return each(c, 0, [](double x) { return x == 0 ? 1.0 : 0.0; });
}

std::vector<Value> absolute(Call& c) {
  require(c.in(0).dtype != DType::boolean, "no magnitude of bool");
  return each(c, 0, [](double x) { return std::fabs(x); });
}

std::vector<Value> negate(Call& c) {
  require(c.in(0).floats() || is_signed_integer(c.in(0).dtype), "a signed number was expected");
  return each(c, 0, [](double x) { return -x; });
}

double checked_log(double x) {
  require(x >= 0, "log of a negative number");
  return std::log(x);
}

const OperatorTable kTable{
    {"Abs", absolute},
    {"Neg", negate},
    {"Exp", [](Call& c) { return each(c, 4, [](double x) { return std::exp(x); }); }},
    {"Log", [](Call& c) { return each(c, 4, checked_log); }},
    {"Sqrt", [](Call& c) { return each(c, 2, [](double x) { return std::sqrt(x); }); }},
    {"Reciprocal", [](Call& c) { return each(c, 2, [](double x) { return 1 / x; }); }},
    {"Tanh",
     [](Call& c) {
       return each(
           c, 4, [](double x) { return std::tanh(x); }, 1);
     }},
    {"Sigmoid", [](Call& c) { return each(c, 4, sigmoid, 1); }},
    {"Erf",
     [](Call& c) {
       return each(
           c, 4, [](double x) { return std::erf(x); }, 1);
     }},
    {"Sin", [](Call& c) { return each(c, 4, [](double x) { return std::sin(x); }); }},
    {"Cos", [](Call& c) { return each(c, 4, [](double x) { return std::cos(x); }); }},
    {"Relu", [](Call& c) { return each(c, 0, [](double x) { return x < 0 ? 0 : x; }); }},
    {"LeakyRelu", [](Call& c) { return each(c, 1, [a = c.real("alpha", 0.01)](double x) { return x < 0 ? a * x : x; }); }},
    {"ThresholdedRelu", [](Call& c) { return each(c, 0, [a = c.real("alpha", 1)](double x) { return x > a ? x : 0; }); }},
    {"Elu", [](Call& c) { return each(c, 4, [a = c.real("alpha", 1)](double x) { return x < 0 ? a * std::expm1(x) : x; }); }},
    {"Celu", [](Call& c) { return each(c, 4, [a = c.real("alpha", 1)](double x) { return x < 0 ? a * std::expm1(x / a) : x; }); }},
    {"Selu",
     [](Call& c) {
       return each(c, 4, [a = c.real("alpha", 1.67326319217681884765625), g = c.real("gamma", 1.05070102214813232421875)](double x) {
         return x <= 0 ? g * a * std::expm1(x) : g * x;
       });
     }},
    {"Softplus", [](Call& c) { return each(c, 4, softplus); }},
    {"Softsign", [](Call& c) { return each(c, 2, [](double x) { return x / (1 + std::fabs(x)); }); }},
    {"HardSigmoid",
     [](Call& c) {
       return each(c, 2,
                   [&c, a = c.real("alpha", 0.2), b = c.real("beta", 0.5)](double x) { return std::clamp(term(c, a * x) + b, 0.0, 1.0); });
     }},
    {"HardSwish", [](Call& c) { return each(c, 2, [&c](double x) { return x * std::clamp(term(c, x / 6) + 0.5, 0.0, 1.0); }); }},
    {"Mish", [](Call& c) { return each(c, 4, [](double x) { return x * std::tanh(softplus(x)); }); }},
    {"Gelu", [](Call& c) { return each(c, 8, [&c](double x) { return gelu(c, x); }); }},
    {"Floor", [](Call& c) { return each(c, 0, [](double x) { return std::floor(x); }); }},
    {"Ceil", [](Call& c) { return each(c, 0, [](double x) { return std::ceil(x); }); }},
    {"Round", [](Call& c) { return each(c, 0, round_even); }},
    {"Sign", [](Call& c) { return each(c, 0, sign); }},
    {"Not", logical_not},
    {"IsNaN", is_nan},
    {"Clip", clip},
    {"Cast", cast},
    {"Add", [](Call& c) { return arithmetic(c, std::plus<>()); }},
    {"Sub", [](Call& c) { return arithmetic(c, std::minus<>()); }},
    {"Mul", [](Call& c) { return arithmetic(c, std::multiplies<>()); }},
    {"Div", divide},
    {"Mod", modulo},
    {"Pow", power},
    {"PRelu", prelu},
    {"Sum", [](Call& c) { return std::vector<Value>{fold(c, 1, std::plus<>())}; }},
    {"Mean", mean},
    {"Max", [](Call& c) { return std::vector<Value>{fold(c, 0, [](auto a, auto b) { return max_of(a, b); })}; }},
    {"Min", [](Call& c) { return std::vector<Value>{fold(c, 0, [](auto a, auto b) { return min_of(a, b); })}; }},
    {"Equal", [](Call& c) { return compare(c, std::equal_to<>()); }},
    {"Less", [](Call& c) { return compare(c, std::less<>()); }},
    {"LessOrEqual", [](Call& c) { return compare(c, std::less_equal<>()); }},
    {"Greater", [](Call& c) { return compare(c, std::greater<>()); }},
    {"GreaterOrEqual", [](Call& c) { return compare(c, std::greater_equal<>()); }},
    {"And", [](Call& c) { return logical(c, std::bit_and<>()); }},
    {"Or", [](Call& c) { return logical(c, std::bit_or<>()); }},
    {"Xor", [](Call& c) { return logical(c, std::bit_xor<>()); }},
    {"BitwiseAnd", [](Call& c) { return bitwise(c, std::bit_and<>()); }},
    {"BitwiseOr", [](Call& c) { return bitwise(c, std::bit_or<>()); }},
    {"BitwiseXor", [](Call& c) { return bitwise(c, std::bit_xor<>()); }},
    {"Where", where},
    {"StringConcat", string_concat},
};

}  // namespace

const OperatorTable& elementwise_operators() { return kTable; }

}  // namespace treadle::graphs
