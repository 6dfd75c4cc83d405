// Gradients of arithmetic, functions of one tensor, and activations.
#include <cmath>
#include <numbers>

#include "ops/gradients.h"
#include "treadle/error.h"

namespace treadle::ops::gradients {
namespace {

/// dy where the condition holds, else 0.
ValueId masked(GradientContext& g, ValueId condition, ValueId dy) { return g.op("Where", {condition, dy, g.scalar(0, dy)}); }

/// The factor of dy for a function of one tensor.
Result scaled(GradientContext& g, ValueId factor) { return {g.mul(g.grad_output(0), factor)}; }

// Max and Min: the operand that was taken gets all; ties go to the first.
Result extremum(GradientContext& g, std::string_view comparison) {
  const ValueId a = g.input(0), b = g.input(1), dy = g.grad_output(0);
  if (b == kNoValue) return {dy};
  const ValueId first = g.op(comparison, {a, b}), zero = g.scalar(0, dy);
  return {g.unbroadcast(g.op("Where", {first, dy, zero}), a), g.unbroadcast(g.op("Where", {first, zero, dy}), b)};
}

}  // namespace

Result none(GradientContext&) { return {}; }
Result identity(GradientContext& g) { return {g.grad_output(0)}; }

Result add(GradientContext& g) {
  const ValueId dy = g.grad_output(0);
  return {g.unbroadcast(dy, g.input(0)), g.unbroadcast(dy, g.input(1))};
}
Result sub(GradientContext& g) {
  const ValueId dy = g.grad_output(0);
  return {g.unbroadcast(dy, g.input(0)), g.unbroadcast(g.neg(dy), g.input(1))};
}
Result mul(GradientContext& g) {
  const ValueId a = g.input(0), b = g.input(1), dy = g.grad_output(0);
  return {g.unbroadcast(g.mul(dy, b), a), g.unbroadcast(g.mul(dy, a), b)};
}
// d(a / b)/db = -a / b^2 = -y / b
Result div(GradientContext& g) {
  const ValueId a = g.input(0), b = g.input(1);
  const ValueId da = g.div(g.grad_output(0), b);
  return {g.unbroadcast(da, a), g.unbroadcast(g.neg(g.mul(da, g.output(0))), b)};
}

// dx = dy * e * x^(e - 1); de = dy * y * log x where x > 0, and 0 elsewhere.
Result pow(GradientContext& g) {
  const ValueId x = g.input(0), dy = g.grad_output(0);
  ValueId exponent = g.input(1);
  if (g.type(exponent).dtype != g.type(x).dtype) exponent = g.op("Cast", {exponent}, {{"to", static_cast<int64_t>(g.type(x).dtype)}});
  const ValueId power = g.graph().is_scalar_constant(g.input(1), 2) ? x : g.op("Pow", {x, g.sub(exponent, g.scalar(1, x))});
  Result result{g.unbroadcast(g.mul(dy, g.mul(exponent, power)), x)};
  if (!g.graph().value(g.input(1)).is_constant() && g.type(g.input(1)).dtype == g.type(x).dtype) {
    const ValueId one = g.scalar(1, x);
    const ValueId logarithm = g.op("Log", {g.op("Where", {g.op("Greater", {x, g.scalar(0, x)}), x, one})});
    result.push_back(g.unbroadcast(g.mul(dy, g.mul(g.output(0), logarithm)), g.input(1)));
  }
  return result;
}

Result maximum(GradientContext& g) { return extremum(g, "GreaterOrEqual"); }
Result minimum(GradientContext& g) { return extremum(g, "LessOrEqual"); }

Result where(GradientContext& g) {
  const ValueId condition = g.input(0), dy = g.grad_output(0), zero = g.scalar(0, dy);
  return {kNoValue, g.unbroadcast(g.op("Where", {condition, dy, zero}), g.input(1)),
          g.unbroadcast(g.op("Where", {condition, zero, dy}), g.input(2))};
}

Result neg(GradientContext& g) { return {g.neg(g.grad_output(0))}; }
Result abs(GradientContext& g) { return scaled(g, g.op("Sign", {g.input(0)})); }
Result exp(GradientContext& g) { return scaled(g, g.output(0)); }
Result log(GradientContext& g) { return {g.div(g.grad_output(0), g.input(0))}; }
Result sqrt(GradientContext& g) { return {g.div(g.grad_output(0), g.mul(g.output(0), g.scalar(2, g.output(0))))}; }
Result reciprocal(GradientContext& g) { return scaled(g, g.neg(g.mul(g.output(0), g.output(0)))); }
Result sin(GradientContext& g) { return scaled(g, g.op("Cos", {g.input(0)})); }
Result cos(GradientContext& g) { return scaled(g, g.neg(g.op("Sin", {g.input(0)}))); }
// 2 / sqrt(pi) * exp(-x^2)
Result erf(GradientContext& g) {
  const ValueId x = g.input(0);
  return scaled(g, g.mul(g.scalar(2 * std::numbers::inv_sqrtpi, x), g.op("Exp", {g.neg(g.mul(x, x))})));
}

Result cast(GradientContext& g) {
  const DType from = g.type(g.input(0)).dtype;
  if (!is_float(from)) return {};
  return {g.op("Cast", {g.grad_output(0)}, {{"to", static_cast<int64_t>(from)}})};
}

// In training mode y = x * mask / (1 - ratio), else y = x.
Result dropout(GradientContext& g) {
  const ValueId dy = g.grad_output(0);
  const Tensor* training = g.input(2) == kNoValue ? nullptr : g.graph().constant_tensor(g.input(2));
  if (g.input(2) == kNoValue || (training && !*training->data<bool>())) return {dy};
  ValueId ratio = g.input(1) == kNoValue ? g.scalar(0.5, dy) : g.input(1);
  if (g.type(ratio).dtype != g.type(dy).dtype) ratio = g.op("Cast", {ratio}, {{"to", static_cast<int64_t>(g.type(dy).dtype)}});
  const ValueId scale = g.op("Where", {g.input(2), g.sub(g.scalar(1, dy), ratio), g.scalar(1, dy)});
  return {masked(g, require_output(g, 1), g.div(dy, scale))};
}

Result relu(GradientContext& g) { return {masked(g, g.op("Greater", {g.output(0), g.scalar(0, g.output(0))}), g.grad_output(0))}; }

Result leaky_relu(GradientContext& g) {
  const ValueId x = g.input(0), dy = g.grad_output(0);
  const double alpha = static_cast<double>(g.attributes().get_float("alpha", 0.01F));
  return {g.op("Where", {g.op("Less", {x, g.scalar(0, x)}), g.mul(dy, g.scalar(alpha, dy)), dy})};
}

// y (1 - y)
Result sigmoid(GradientContext& g) {
  const ValueId y = g.output(0);
  return scaled(g, g.mul(y, g.sub(g.scalar(1, y), y)));
}
// 1 - y^2
Result tanh(GradientContext& g) {
  const ValueId y = g.output(0);
  return scaled(g, g.sub(g.scalar(1, y), g.mul(y, y)));
}

Result gelu(GradientContext& g) {
  const ValueId x = g.input(0);
  auto number = [&](double value) { return g.scalar(value, x); };
  const ValueId square = g.mul(x, x);
  if (g.attributes().get_string("approximate", "none") == "tanh") {
    // y = x / 2 (1 + t), t = tanh(k (x + c x^3)): y' = (1 + t) / 2 + x / 2 (1 - t^2) k (1 + 3 c x^2)
    const double k = std::sqrt(2 / std::numbers::pi), c = 0.044715;
    const ValueId t = g.op("Tanh", {g.mul(number(k), g.mul(x, g.add(number(1), g.mul(number(c), square))))});
    const ValueId slope = g.mul(g.sub(number(1), g.mul(t, t)), g.mul(number(k), g.add(number(1), g.mul(number(3 * c), square))));
    return scaled(g, g.mul(number(0.5), g.add(g.add(number(1), t), g.mul(x, slope))));
  }
  // y = x F(x) with the normal distribution F: y' = F(x) + x F'(x)
  const ValueId distribution = g.mul(number(0.5), g.add(number(1), g.op("Erf", {g.mul(x, number(std::numbers::sqrt2 / 2))})));
  const ValueId density = g.mul(number(std::numbers::inv_sqrtpi / std::numbers::sqrt2), g.op("Exp", {g.mul(number(-0.5), square)}));
  return scaled(g, g.add(distribution, g.mul(x, density)));
}

Result softplus(GradientContext& g) { return scaled(g, g.op("Sigmoid", {g.input(0)})); }

// y = x s(a x): y' = s + a y (1 - s)
Result swish(GradientContext& g) {
  const ValueId x = g.input(0);
  const ValueId alpha = g.scalar(static_cast<double>(g.attributes().get_float("alpha", 1)), x);
  const ValueId s = g.op("Sigmoid", {g.mul(alpha, x)});
  return scaled(g, g.add(s, g.mul(g.mul(alpha, g.output(0)), g.sub(g.scalar(1, x), s))));
}

// 1 where x >= 0, else alpha exp(x) = y + alpha
Result elu(GradientContext& g) {
  const ValueId x = g.input(0), y = g.output(0), dy = g.grad_output(0);
  const ValueId alpha = g.scalar(static_cast<double>(g.attributes().get_float("alpha", 1)), x);
  return {g.op("Where", {g.op("Less", {x, g.scalar(0, x)}), g.mul(dy, g.add(y, alpha)), dy})};
}

Result hard_sigmoid(GradientContext& g) {
  const ValueId y = g.output(0), dy = g.grad_output(0);
  const ValueId inside = g.op("And", {g.op("Greater", {y, g.scalar(0, y)}), g.op("Less", {y, g.scalar(1, y)})});
  return {masked(g, inside, g.mul(dy, g.scalar(static_cast<double>(g.attributes().get_float("alpha", 0.2F)), dy)))};
}

// y = x clip(x / 6 + 1 / 2, 0, 1): y' = x / 3 + 1 / 2 inside (-3, 3), 0 below and 1 above
Result hard_swish(GradientContext& g) {
  const ValueId x = g.input(0), dy = g.grad_output(0);
  const ValueId slope = g.add(g.mul(x, g.scalar(1.0 / 3, x)), g.scalar(0.5, x));
  const ValueId above = g.op("GreaterOrEqual", {x, g.scalar(3, x)}), below = g.op("LessOrEqual", {x, g.scalar(-3, x)});
  return {g.op("Where", {above, dy, masked(g, g.op("Not", {below}), g.mul(dy, slope))})};
}

Result clip(GradientContext& g) {
  const ValueId x = g.input(0);
  ValueId dx = g.grad_output(0);
  if (g.input(1) != kNoValue) dx = masked(g, g.op("GreaterOrEqual", {x, g.input(1)}), dx);
  if (g.input(2) != kNoValue) dx = masked(g, g.op("LessOrEqual", {x, g.input(2)}), dx);
  return {dx};
}

// dx = y (dy - sum(y dy)). Uses y only, so x need not live until the backward pass.
Result softmax(GradientContext& g) {
  const ValueId y = g.output(0), dy = g.grad_output(0);
  const ValueId dot = g.reduce_sum(g.mul(y, dy), {g.attributes().get_int("axis", -1)}, /*keepdims=*/true);
  return {g.mul(y, g.sub(dy, dot))};
}
// dx = dy - exp(y) sum(dy)
Result log_softmax(GradientContext& g) {
  const ValueId y = g.output(0), dy = g.grad_output(0);
  const ValueId sum = g.reduce_sum(dy, {g.attributes().get_int("axis", -1)}, /*keepdims=*/true);
  return {g.sub(dy, g.mul(g.op("Exp", {y}), sum))};
}

// 1 / (1 + |x|)^2
Result softsign(GradientContext& g) {
  const ValueId x = g.input(0), root = g.op("Reciprocal", {g.add(g.op("Abs", {x}), g.scalar(1, x))});
  return scaled(g, g.mul(root, root));
}

// gamma where x > 0, else gamma alpha e^x = y + gamma alpha
Result selu(GradientContext& g) {
  const ValueId x = g.input(0), y = g.output(0);
  const double gamma = static_cast<double>(g.attributes().get_float("gamma", 1.05070102F));
  const double alpha = static_cast<double>(g.attributes().get_float("alpha", 1.67326319F));
  return scaled(g, g.op("Where", {g.op("Greater", {x, g.scalar(0, x)}), g.scalar(gamma, x), g.add(y, g.scalar(gamma * alpha, y))}));
}

// 1 where x > 0, else e^(x / alpha) = y / alpha + 1
Result celu(GradientContext& g) {
  const ValueId x = g.input(0), y = g.output(0);
  const double alpha = static_cast<double>(g.attributes().get_float("alpha", 1));
  const ValueId power = g.add(g.div(y, g.scalar(alpha, y)), g.scalar(1, y));
  return scaled(g, g.op("Where", {g.op("Greater", {x, g.scalar(0, x)}), g.scalar(1, x), power}));
}

}  // namespace treadle::ops::gradients
