// Generates nodes that compute elementwise or along axes, and the patterns of such nodes that passes look for.
#include <algorithm>
#include <cmath>

#include "tests/graphs/generator.h"

namespace treadle::graphs {
namespace {

bool any(const Array&) { return true; }
bool floats(const Array& a) { return a.floats(); }
bool wide_floats(const Array& a) { return a.floats() && a.dtype != DType::bfloat16; }
bool numbers(const Array& a) { return a.dtype != DType::boolean; }
bool signed_numbers(const Array& a) { return a.floats() || a.dtype == DType::int32 || a.dtype == DType::int64 || a.dtype == DType::int8; }
bool bools(const Array& a) { return a.dtype == DType::boolean; }

using Names = std::vector<std::string>;

// Returns a second operand for x: another value, x itself, or a constant that broadcasts.
std::string partner(Generator& g, const std::string& x) {
  const Array& a = g.array(x);
  if (g.one_in(8)) return x;
  if (g.one_in(3)) {
    Dims dims = a.dims;
    if (g.one_in(2)) dims.erase(dims.begin(), dims.begin() + g.below(static_cast<int64_t>(dims.size()) + 1));
    for (int64_t& d : dims)
      if (g.one_in(3)) d = 1;
    Array constant = g.random_array(a.dtype, dims);
    if (g.one_in(8))
      for (size_t k = 0; k < constant.size(); ++k) constant.set(k, g.one_of<double>({0.0, 1.0}));
    return g.constant(constant);
  }
  const std::string y = g.pick([&](const Array& b) {
    if (b.dtype != a.dtype) return false;
    try {
      broadcast(a.dims, b.dims);
      return true;
    } catch (const Invalid&) {
      return false;
    }
  });
  return y.empty() ? x : y;
}

bool unary(Generator& g) {
  const std::string x = g.pick(floats);
  if (x.empty()) return false;
  if (g.array(x).dtype == DType::bfloat16)
    return !g.add(g.one_of<std::string>({"Abs", "Neg", "Relu", "Tanh", "Sigmoid", "Exp", "Sqrt", "Erf"}), {x}).empty();
  const std::string op = g.one_of<std::string>({"Abs",         "Neg",       "Exp",     "Log",       "Sqrt",
                                                "Reciprocal",  "Tanh",      "Sigmoid", "Erf",       "Sin",
                                                "Cos",         "Relu",      "Relu",    "LeakyRelu", "ThresholdedRelu",
                                                "Elu",         "Celu",      "Selu",    "Softplus",  "Softsign",
                                                "HardSigmoid", "HardSwish", "Mish",    "Gelu",      "Floor",
                                                "Ceil",        "Round",     "Sign",    "Tanh",      "Neg"});
  if (op == "LeakyRelu") return !g.add(op, {x}, attributes(real("alpha", 0.125F))).empty();
  if (op == "Gelu") return !g.add(op, {x}, attributes(text("approximate", g.one_in(2) ? "tanh" : "none"))).empty();
  return !g.add(op, {x}).empty();
}

bool unary_any(Generator& g) {
  const std::string x = g.pick(signed_numbers);
  return !x.empty() && !g.add(g.one_of<std::string>({"Abs", "Neg", "Sign"}), {x}).empty();
}

bool binary(Generator& g) {
  const std::string x = g.pick(numbers);
  if (x.empty()) return false;
  Names operands{x, partner(g, x)};
  if (g.one_in(2)) std::swap(operands[0], operands[1]);
  const std::string op = g.one_of<std::string>({"Add", "Add", "Sub", "Mul", "Mul", "Div"});
  return !g.add(op, operands).empty();
}

bool variadic(Generator& g) {
  const bool sums = g.one_in(2);
  const std::string x = g.pick(sums ? floats : numbers);
  if (x.empty()) return false;
  Names operands{x};
  for (int64_t count = g.below(4); count > 0; --count) operands.push_back(partner(g, x));
  return !g.add(sums ? g.one_of<std::string>({"Sum", "Mean"}) : g.one_of<std::string>({"Max", "Min"}), operands).empty();
}

bool compare(Generator& g) {
  const std::string x = g.pick(numbers);
  if (x.empty()) return false;
  return !g.add(g.one_of<std::string>({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}), {x, partner(g, x)}).empty();
}

bool logical(Generator& g) {
  const std::string x = g.pick(bools);
  if (x.empty()) return false;
  if (g.one_in(3)) return !g.add("Not", {x}).empty();
  return !g.add(g.one_of<std::string>({"And", "Or", "Xor"}), {x, partner(g, x)}).empty();
}

bool bitwise(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return is_integer(a.dtype); });
  return !x.empty() && !g.add(g.one_of<std::string>({"BitwiseAnd", "BitwiseOr", "BitwiseXor"}), {x, partner(g, x)}).empty();
}

bool where(Generator& g) {
  const std::string condition = g.pick(bools), x = g.pick(any);
  return !condition.empty() && !x.empty() && !g.add("Where", {condition, x, partner(g, x)}).empty();
}

bool clip(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.floats() || a.dtype == DType::int32 || a.dtype == DType::int64; });
  if (x.empty()) return false;
  Array low(g.array(x).dtype, {}), high = low;
  low.set(0, g.between(-3, 0));
  high.set(0, g.between(1, 6));
  if (g.one_in(4)) return !g.add("Clip", {x, "", g.constant(high)}).empty();
  if (g.one_in(4)) return !g.add("Clip", {x, g.constant(low)}).empty();
  return !g.add("Clip", {x, g.constant(low), g.constant(high)}).empty();
}

bool cast(Generator& g) {
  const std::string x = g.pick(any);
  if (x.empty()) return false;
  const DType to = g.one_of<DType>({DType::float32, DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int64,
                                    DType::int32, DType::int8, DType::uint8, DType::boolean});
  return !g.add("Cast", {x}, attributes(integer("to", static_cast<int64_t>(to)))).empty();
}

bool power(Generator& g) {
  const std::string x = g.pick(wide_floats);
  if (x.empty()) return false;
  Array exponent(g.array(x).dtype, {});
  exponent.set(0, g.one_of<double>({2, 3, 1, 0, 0.5, -1}));
  for (double v : g.array(x).f)
    if (v < 0 && exponent.f[0] == 0.5) return false;
  return !g.add("Pow", {x, g.constant(exponent)}).empty();
}

bool reduce(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.floats() || a.dtype == DType::int32 || a.dtype == DType::int64; });
  if (x.empty()) return false;
  const bool is_floats = g.array(x).floats();
  const std::string op = is_floats ? g.one_of<std::string>({"ReduceSum", "ReduceSum", "ReduceMean", "ReduceMean", "ReduceMax", "ReduceMin",
                                                            "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"})
                                   : g.one_of<std::string>({"ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"});
  const int64_t rank = g.array(x).rank();
  Names inputs{x};
  if (rank > 0 && !g.one_in(5)) {
    std::vector<int64_t> axes{g.below(rank)};
    if (rank > 1 && g.one_in(3)) axes.push_back((axes[0] + 1) % rank);
    if (g.one_in(3)) axes[0] -= rank;
    inputs.push_back(g.constant_ints(axes));
  }
  return !g.add(op, inputs, attributes(integer("keepdims", g.below(2)))).empty();
}

bool arg_extreme(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return (a.dtype == DType::float32 || a.dtype == DType::int32) && a.rank() > 0; });
  return !x.empty() && !g.add(g.one_in(2) ? "ArgMax" : "ArgMin", {x},
                              attributes(integer("axis", g.below(g.array(x).rank())), integer("keepdims", g.below(2))))
                            .empty();
}

bool softmax(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.floats() && a.rank() > 0; });
  if (x.empty()) return false;
  const int64_t rank = g.array(x).rank();
  return !g.add(g.one_in(3) ? "LogSoftmax" : "Softmax", {x}, attributes(integer("axis", g.one_in(2) ? -1 : g.below(rank)))).empty();
}

bool cumulative_sum(Generator& g) {
  const std::string x = g.pick([](const Array& a) {
    return (a.dtype == DType::float32 || a.dtype == DType::float64 || a.dtype == DType::int32 || a.dtype == DType::int64) && a.rank() > 0;
  });
  if (x.empty()) return false;
  return !g.add("CumSum", {x, g.constant(Array::scalar(g.below(g.array(x).rank())))},
                attributes(integer("exclusive", g.below(2)), integer("reverse", g.below(2))))
              .empty();
}

bool top_k(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return (a.dtype == DType::float32 || a.dtype == DType::int64) && a.rank() > 0; });
  if (x.empty()) return false;
  const int64_t axis = g.below(g.array(x).rank()), extent = g.array(x).dims[static_cast<size_t>(axis)];
  return !g.add("TopK", {x, g.constant_ints({g.between(std::min<int64_t>(1, extent), extent)})},
                attributes(integer("axis", axis), integer("largest", g.below(2))), 2)
              .empty();
}

bool nonzero(Generator& g) {
  const std::string x = g.pick(
      [](const Array& a) { return (a.dtype == DType::float32 || a.dtype == DType::int64 || a.dtype == DType::boolean) && a.rank() > 0; });
  return !x.empty() && !g.add("NonZero", {x}).empty();
}

// Adds a scalar constant of x's dtype, and returns its name.
std::string number(Generator& g, const std::string& x, double value) {
  Array c(g.array(x).dtype, {});
  c.set(0, value);
  return g.constant(c);
}

bool gelu_written_out(Generator& g) {
  const std::string x = g.pick(wide_floats);
  if (x.empty()) return false;
  const std::string erf = g.add_one("Erf", {g.add_one("Div", {x, number(g, x, std::sqrt(2.0))})});
  const std::string sum = g.add_one("Add", {erf, number(g, x, 1)});
  return !g.add_one("Mul", {g.add_one("Mul", {x, sum}), number(g, x, 0.5)}).empty();
}

bool swish_written_out(Generator& g) {
  const std::string x = g.pick(floats);
  return !x.empty() && !g.add_one("Mul", {x, g.add_one("Sigmoid", {x})}).empty();
}

bool normalization_written_out(Generator& g) {
  const std::string x =
      g.pick([](const Array& a) { return a.floats() && a.dtype != DType::bfloat16 && a.rank() > 0 && a.size() > 0 && a.dims.back() > 1; });
  if (x.empty()) return false;
  auto mean_of = [&](const std::string& v) {
    return g.add_one("ReduceMean", {v, g.constant_ints({-1})}, attributes(integer("keepdims", 1)));
  };
  const bool rms = g.one_in(2);
  const std::string centered = rms ? x : g.add_one("Sub", {x, mean_of(x)});
  const std::string variance = mean_of(g.add_one("Pow", {centered, number(g, x, 2)}));
  const std::string deviation = g.add_one("Sqrt", {g.add_one("Add", {variance, number(g, x, 0.01)})});
  const std::string y = g.add_one("Div", {centered, deviation});
  if (y.empty()) return false;
  const std::string scaled = g.add_one("Mul", {y, g.constant(g.random_array(g.array(x).dtype, {g.array(x).dims.back()}))});
  if (!scaled.empty() && !rms) g.add_one("Add", {scaled, g.constant(g.random_array(g.array(x).dtype, {g.array(x).dims.back()}))});
  return true;
}

}  // namespace

const std::vector<Kind>& compute_kinds() {
  static const std::vector<Kind> kinds{
      {"unary", 9, unary},
      {"unary_any", 1, unary_any},
      {"binary", 12, binary},
      {"variadic", 3, variadic},
      {"compare", 2, compare},
      {"logical", 2, logical},
      {"bitwise", 1, bitwise},
      {"where", 3, where},
      {"clip", 2, clip},
      {"cast", 4, cast},
      {"power", 1, power},
      {"reduce", 5, reduce},
      {"arg_extreme", 1, arg_extreme},
      {"softmax", 3, softmax},
      {"cumulative_sum", 1, cumulative_sum},
      {"top_k", 1, top_k},
      {"nonzero", 1, nonzero},
      {"gelu", 1, gelu_written_out},
      {"swish", 1, swish_written_out},
      {"normalization", 1, normalization_written_out},
  };
  return kinds;
}

}  // namespace treadle::graphs
