#include "ops/functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <numbers>

#include "core/values/float_types.h"
#include "ops/gradients.h"
#include "ops/typed_step.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using kernels::ChainOp;
using kernels::Unary;
using ops::masked;
using Result = std::vector<ValueId>;

// Gradients of the functions.

/// Returns dy * factor, the gradient of a function of one tensor.
Result scaled(GradientContext& g, ValueId factor) { return {g.mul(g.grad_output(0), factor)}; }

Result neg(GradientContext& g) { return {g.neg(g.grad_output(0))}; }

Result abs(GradientContext& g) { return scaled(g, g.op("Sign", {g.input(0)})); }

Result exp(GradientContext& g) { return scaled(g, g.output(0)); }

Result log(GradientContext& g) { return {g.div(g.grad_output(0), g.input(0))}; }

Result sqrt(GradientContext& g) { return {g.div(g.grad_output(0), g.mul(g.output(0), g.scalar(2, g.output(0))))}; }

Result reciprocal(GradientContext& g) { return scaled(g, g.neg(g.mul(g.output(0), g.output(0)))); }

Result sin(GradientContext& g) { return scaled(g, g.op("Cos", {g.input(0)})); }

Result cos(GradientContext& g) { return scaled(g, g.neg(g.op("Sin", {g.input(0)}))); }

// Uses y' = 2 / sqrt(pi) exp(-x^2).
Result erf(GradientContext& g) {
  const ValueId x = g.input(0);
  return scaled(g, g.mul(g.scalar(2 * std::numbers::inv_sqrtpi, x), g.op("Exp", {g.neg(g.mul(x, x))})));
}

Result relu(GradientContext& g) { return {masked(g, g.op("Greater", {g.output(0), g.scalar(0, g.output(0))}), g.grad_output(0))}; }

Result leaky_relu(GradientContext& g) {
  const ValueId x = g.input(0), dy = g.grad_output(0);
  const double alpha = static_cast<double>(g.attributes().get_float("alpha", 0.01F));
  return {g.op("Where", {g.op("Less", {x, g.scalar(0, x)}), g.mul(dy, g.scalar(alpha, dy)), dy})};
}

// Uses y' = y (1 - y).
Result sigmoid(GradientContext& g) {
  const ValueId y = g.output(0);
  return scaled(g, g.mul(y, g.sub(g.scalar(1, y), y)));
}

// Uses y' = 1 - y^2.
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
  return scaled(g, g.op("GeluSlope", {x}, {}, "treadle"));
}

// GeluSlope is F(x) + x f(x), where F is the normal distribution and f = F' its density. The derivative is f(x) (2 - x^2).
Result gelu_slope(GradientContext& g) {
  const ValueId x = g.input(0), square = g.mul(x, x);
  const ValueId density =
      g.mul(g.scalar(std::numbers::inv_sqrtpi / std::numbers::sqrt2, x), g.op("Exp", {g.mul(g.scalar(-0.5, x), square)}));
  return scaled(g, g.mul(density, g.sub(g.scalar(2, x), square)));
}

Result softplus(GradientContext& g) { return scaled(g, g.op("Sigmoid", {g.input(0)})); }

// For y = x s(alpha x), with the sigmoid s: y' = s + alpha y (1 - s).
Result swish(GradientContext& g) {
  const ValueId x = g.input(0);
  const ValueId alpha = g.scalar(static_cast<double>(g.attributes().get_float("alpha", 1)), x);
  const ValueId s = g.op("Sigmoid", {g.mul(alpha, x)});
  return scaled(g, g.add(s, g.mul(g.mul(alpha, g.output(0)), g.sub(g.scalar(1, x), s))));
}

// Uses y' = 1 where x >= 0, else alpha exp(x) = y + alpha.
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

// For y = x clip(x / 6 + 1 / 2, 0, 1): y' = x / 3 + 1 / 2 inside (-3, 3), 0 below and 1 above.
Result hard_swish(GradientContext& g) {
  const ValueId x = g.input(0), dy = g.grad_output(0);
  const ValueId slope = g.add(g.mul(x, g.scalar(1.0 / 3, x)), g.scalar(0.5, x));
  const ValueId above = g.op("GreaterOrEqual", {x, g.scalar(3, x)}), below = g.op("LessOrEqual", {x, g.scalar(-3, x)});
  return {g.op("Where", {above, dy, masked(g, g.op("Not", {below}), g.mul(dy, slope))})};
}

// y = min(max(x, low), high): dy goes to the operand (x, low or high) that y equals.
Result clip(GradientContext& g) {
  const ValueId x = g.input(0), low = g.input(1), high = g.input(2), dy = g.grad_output(0);
  const ValueId below = low == kNoValue ? kNoValue : g.op("Less", {x, low}),
                above = high == kNoValue ? kNoValue : g.op("Greater", {x, high});
  Result result{dy, kNoValue, kNoValue};
  const ValueId outside = below == kNoValue ? above : above == kNoValue ? below : g.op("Or", {below, above});
  if (outside != kNoValue) result[0] = g.op("Where", {outside, g.scalar(0, dy), dy});
  const ValueId taken = high == kNoValue || low == kNoValue ? above : g.op("Greater", {g.op("Max", {x, low}), high});
  if (g.wants(1)) {
    const ValueId of_low = high == kNoValue ? dy : g.op("Where", {taken, g.scalar(0, dy), dy});
    result[1] = g.unbroadcast(masked(g, below, of_low), low);
  }
  if (g.wants(2)) result[2] = g.unbroadcast(masked(g, taken, dy), high);
  return result;
}

// Uses y' = 1 / (1 + |x|)^2.
Result softsign(GradientContext& g) {
  const ValueId x = g.input(0), root = g.op("Reciprocal", {g.add(g.op("Abs", {x}), g.scalar(1, x))});
  return scaled(g, g.mul(root, root));
}

// Uses y' = gamma where x > 0, else gamma alpha e^x = y + gamma alpha.
Result selu(GradientContext& g) {
  const ValueId x = g.input(0), y = g.output(0);
  const double gamma = static_cast<double>(g.attributes().get_float("gamma", 1.05070102F));
  const double alpha = static_cast<double>(g.attributes().get_float("alpha", 1.67326319F));
  return scaled(g, g.op("Where", {g.op("Greater", {x, g.scalar(0, x)}), g.scalar(gamma, x), g.add(y, g.scalar(gamma * alpha, y))}));
}

// Uses y' = 1 where x > 0, else e^(x / alpha) = y / alpha + 1.
Result celu(GradientContext& g) {
  const ValueId x = g.input(0), y = g.output(0);
  const double alpha = static_cast<double>(g.attributes().get_float("alpha", 1));
  const ValueId power = g.add(g.div(y, g.scalar(alpha, y)), g.scalar(1, y));
  return scaled(g, g.op("Where", {g.op("Greater", {x, g.scalar(0, x)}), g.scalar(1, x), power}));
}

Result thresholded_relu(GradientContext& g) {
  const ValueId x = g.input(0);
  const double alpha = static_cast<double>(g.attributes().get_float("alpha", 1));
  return {masked(g, g.op("Greater", {x, g.scalar(alpha, x)}), g.grad_output(0))};
}

// For y = x t with t = tanh(softplus(x)): y' = t + x (1 - t^2) sigmoid(x).
Result mish(GradientContext& g) {
  const ValueId x = g.input(0), t = g.op("Tanh", {g.op("Softplus", {x})});
  const ValueId slope = g.mul(g.sub(g.scalar(1, x), g.mul(t, t)), g.op("Sigmoid", {x}));
  return scaled(g, g.add(t, g.mul(x, slope)));
}

/// Returns sign * x^2 + shift.
ValueId of_square(GradientContext& g, ValueId x, double sign, double shift) {
  const ValueId square = g.mul(x, x);
  return g.add(sign < 0 ? g.neg(square) : square, g.scalar(shift, x));
}

Result tan(GradientContext& g) { return scaled(g, of_square(g, g.output(0), 1, 1)); }

Result asin(GradientContext& g) { return {g.div(g.grad_output(0), g.op("Sqrt", {of_square(g, g.input(0), -1, 1)}))}; }

Result acos(GradientContext& g) { return {g.neg(g.div(g.grad_output(0), g.op("Sqrt", {of_square(g, g.input(0), -1, 1)})))}; }

Result atan(GradientContext& g) { return {g.div(g.grad_output(0), of_square(g, g.input(0), 1, 1))}; }

Result sinh(GradientContext& g) { return scaled(g, g.op("Cosh", {g.input(0)})); }

Result cosh(GradientContext& g) { return scaled(g, g.op("Sinh", {g.input(0)})); }

Result asinh(GradientContext& g) { return {g.div(g.grad_output(0), g.op("Sqrt", {of_square(g, g.input(0), 1, 1)}))}; }

Result acosh(GradientContext& g) { return {g.div(g.grad_output(0), g.op("Sqrt", {of_square(g, g.input(0), 1, -1)}))}; }

Result atanh(GradientContext& g) { return {g.div(g.grad_output(0), of_square(g, g.input(0), -1, 1))}; }

// The table of functions.

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kSeluAlpha = 1.67326319217681884765625F, kSeluGamma = 1.05070102214813232421875F;
constexpr ScalarFunction::Parameter kAlphaOne{"alpha", 1};
constexpr std::string_view kNoOperator = "-";

// Rows of the same operator must be adjacent, because functions_named() returns them as one span.
constexpr ScalarFunction kFunctions[] = {
    {.name = "Relu", .alias = "relu", .step = ChainOp::unary, .code = Unary::relu, .lowest = 0, .keeps_zero = true, .gradient = relu},
    {.name = "LeakyRelu",
     .alias = "leaky_relu",
     .step = ChainOp::unary,
     .code = Unary::leaky_relu,
     .a = {"alpha", 0.01F},
     .keeps_zero = true,
     .gradient = leaky_relu},
    {.name = "ThresholdedRelu",
     .step = ChainOp::unary,
     .code = Unary::thresholded_relu,
     .a = kAlphaOne,
     .keeps_zero = true,
     .gradient = thresholded_relu},
    {.name = "Elu", .alias = "elu", .step = ChainOp::unary, .code = Unary::elu, .a = kAlphaOne, .keeps_zero = true, .gradient = elu},
    {.name = "Selu",
     .step = ChainOp::unary,
     .code = Unary::selu,
     .a = {"alpha", kSeluAlpha},
     .b = {"gamma", kSeluGamma},
     .keeps_zero = true,
     .gradient = selu},
    {.name = "Celu", .step = ChainOp::unary, .code = Unary::celu, .a = kAlphaOne, .gradient = celu},
    {.name = "Clip",
     .alias = "clip",
     .step = ChainOp::unary,
     .code = Unary::clip,
     .a = {"min", -kInfinity, 1},
     .b = {"max", kInfinity, 2},
     .gradient = clip},
    {.name = "Sigmoid", .alias = "sigmoid", .step = ChainOp::unary, .code = Unary::sigmoid, .lowest = 0, .highest = 1, .gradient = sigmoid},
    {.name = "HardSigmoid",
     .alias = "hard_sigmoid",
     .step = ChainOp::unary,
     .code = Unary::hard_sigmoid,
     .a = {"alpha", 0.2F},
     .b = {"beta", 0.5F},
     .lowest = 0,
     .highest = 1,
     .gradient = hard_sigmoid},
    {.name = "HardSwish",
     .alias = "hard_swish",
     .step = ChainOp::unary,
     .code = Unary::hard_swish,
     .keeps_zero = true,
     .gradient = hard_swish},
    {.name = "scaled_hard_swish",
     .alias = "scaled_hard_swish",
     .step = ChainOp::unary,
     .code = Unary::scaled_hard_swish,
     .op_type = kNoOperator},
    {.name = "Swish", .alias = "silu", .step = ChainOp::unary, .code = Unary::silu, .a = kAlphaOne, .keeps_zero = true, .gradient = swish},
    {.name = "Mish", .alias = "mish", .step = ChainOp::unary, .code = Unary::mish, .keeps_zero = true, .gradient = mish},
    {.name = "Gelu", .alias = "gelu", .step = ChainOp::unary, .code = Unary::gelu, .keeps_zero = true, .gradient = gelu},
    {.name = "GeluTanh",
     .alias = "gelu_tanh",
     .step = ChainOp::unary,
     .code = Unary::gelu_tanh,
     .keeps_zero = true,
     .gradient = gelu,
     .op_type = "Gelu",
     .attribute = "approximate",
     .value = "tanh"},
    {.name = "GeluSlope", .step = ChainOp::unary, .code = Unary::gelu_slope, .gradient = gelu_slope, .domain = "treadle"},
    {.name = "Tanh",
     .alias = "tanh",
     .step = ChainOp::unary,
     .code = Unary::tanh,
     .lowest = -1,
     .highest = 1,
     .keeps_zero = true,
     .gradient = tanh},
    {.name = "Softplus", .alias = "softplus", .step = ChainOp::unary, .code = Unary::softplus, .lowest = 0, .gradient = softplus},
    {.name = "Softsign",
     .step = ChainOp::unary,
     .code = Unary::softsign,
     .lowest = -1,
     .highest = 1,
     .keeps_zero = true,
     .gradient = softsign},
    {.name = "Abs", .step = ChainOp::unary, .code = Unary::abs, .lowest = 0, .keeps_zero = true, .gradient = abs},
    {.name = "Neg", .step = ChainOp::unary, .code = Unary::neg, .keeps_zero = true, .gradient = neg},
    {.name = "Sqrt", .step = ChainOp::unary, .code = Unary::sqrt, .keeps_zero = true, .gradient = sqrt},
    {.name = "Reciprocal", .step = ChainOp::unary, .code = Unary::reciprocal, .gradient = reciprocal},
    {.name = "Exp", .step = ChainOp::unary, .code = Unary::exp, .lowest = 0, .gradient = exp},
    {.name = "Log", .step = ChainOp::unary, .code = Unary::log, .gradient = log},
    {.name = "Erf", .step = ChainOp::unary, .code = Unary::erf, .lowest = -1, .highest = 1, .keeps_zero = true, .gradient = erf},
    {.name = "Sin", .step = ChainOp::unary, .code = Unary::sin, .lowest = -1, .highest = 1, .keeps_zero = true, .gradient = sin},
    {.name = "Cos", .step = ChainOp::unary, .code = Unary::cos, .lowest = -1, .highest = 1, .gradient = cos},
    {.name = "Tan", .step = ChainOp::unary, .code = Unary::tan, .keeps_zero = true, .gradient = tan},
    {.name = "Asin", .step = ChainOp::unary, .code = Unary::asin, .keeps_zero = true, .gradient = asin},
    {.name = "Acos", .step = ChainOp::unary, .code = Unary::acos, .lowest = 0, .gradient = acos},
    {.name = "Atan", .step = ChainOp::unary, .code = Unary::atan, .keeps_zero = true, .gradient = atan},
    {.name = "Sinh", .step = ChainOp::unary, .code = Unary::sinh, .keeps_zero = true, .gradient = sinh},
    {.name = "Cosh", .step = ChainOp::unary, .code = Unary::cosh, .lowest = 1, .gradient = cosh},
    {.name = "Asinh", .step = ChainOp::unary, .code = Unary::asinh, .keeps_zero = true, .gradient = asinh},
    {.name = "Acosh", .step = ChainOp::unary, .code = Unary::acosh, .lowest = 0, .gradient = acosh},
    {.name = "Atanh", .step = ChainOp::unary, .code = Unary::atanh, .keeps_zero = true, .gradient = atanh},
    {.name = "Floor", .step = ChainOp::floor, .keeps_zero = true, .gradient = ops::gradients::none},
    {.name = "Ceil", .step = ChainOp::ceil, .keeps_zero = true, .gradient = ops::gradients::none},
    {.name = "Round", .step = ChainOp::round, .keeps_zero = true, .gradient = ops::gradients::none},
    {.name = "Sign", .step = ChainOp::sign, .lowest = -1, .highest = 1, .keeps_zero = true, .gradient = ops::gradients::none},
    {.name = "IsNaN", .step = ChainOp::is_nan, .lowest = 0, .highest = 1},
    {.name = "Not", .step = ChainOp::logical_not, .lowest = 0, .highest = 1},
    {.name = "Affine", .step = ChainOp::unary, .code = Unary::affine, .a = {"alpha", 1}, .b = {"beta", 0}, .op_type = kNoOperator},
    {.name = "ScaledTanh", .step = ChainOp::unary, .code = Unary::scaled_tanh, .a = {"alpha", 1}, .b = {"beta", 1}, .op_type = kNoOperator},
    // ToFloat and ToBool are the forms of Cast that convert to float32 and to bool.
    {.name = "ToFloat", .step = ChainOp::unary, .op_type = kNoOperator},
    {.name = "ToBool", .step = ChainOp::truth, .lowest = 0, .highest = 1, .op_type = kNoOperator},
};

std::string_view operator_of(const ScalarFunction& function) { return function.op_type.empty() ? function.name : function.op_type; }

}  // namespace

const ScalarFunction* find_function(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](const ScalarFunction& function) {
    return function.name == name || (!function.alias.empty() && function.alias == name);
  });
  if (found != std::end(kFunctions)) return found;
  const size_t colon = name.find(':');
  if (colon == std::string_view::npos) return nullptr;
  const OpDef* op = find_op(name.substr(0, colon), name.substr(colon + 1));
  return op && !op->functions.empty() ? &op->functions[0] : nullptr;
}

const ScalarFunction* function_of(const Node& node) {
  if (!node.op) return nullptr;
  const ScalarFunction* plain = nullptr;
  for (const ScalarFunction& function : node.op->functions) {
    if (function.attribute.empty())
      plain = &function;
    else if (node.attributes.get_string(function.attribute) == function.value)
      return &function;
  }
  return plain;
}

namespace {

/// Returns the number in a constant of one element of type float32, float16 or bfloat16; nullopt for any other value.
std::optional<float> scalar_of(const Tensor* tensor) {
  if (!tensor || tensor->num_elements() != 1) return std::nullopt;
  switch (tensor->dtype()) {
    case DType::float32: return tensor->data<float>()[0];
    case DType::float16: return static_cast<float>(tensor->data<Float16>()[0]);
    case DType::bfloat16: return static_cast<float>(tensor->data<BFloat16>()[0]);
    default: return std::nullopt;
  }
}

}  // namespace

std::optional<FunctionParameters> parameters_of(const Graph& graph, const Node& node, const ScalarFunction& function) {
  bool constant = true;
  auto value = [&](const ScalarFunction::Parameter& parameter) {
    if (parameter.input < 0) return parameter.name.empty() ? 0 : node.attributes.get_float(parameter.name, parameter.otherwise);
    const auto input = static_cast<size_t>(parameter.input);
    if (!node.has_input(input)) return parameter.otherwise;
    const std::optional<float> number = scalar_of(graph.constant_tensor(node.inputs[input]));
    constant &= number.has_value();
    return number.value_or(0);
  };
  const FunctionParameters result{value(function.a), value(function.b)};
  if (!constant || (function.code == Unary::clip && !(result.a <= result.b))) return std::nullopt;
  return result;
}

namespace ops {

std::span<const ScalarFunction> functions_named(std::string_view op_type) {
  auto is_its = [&](const ScalarFunction& function) { return operator_of(function) == op_type; };
  const auto* first = std::find_if(std::begin(kFunctions), std::end(kFunctions), is_its);
  return {first, std::find_if_not(first, std::end(kFunctions), is_its)};
}

OpDef with_function_facts(OpDef op) {
  op.pointwise = true;
  op.functions = functions_named(op.name);
  if (op.functions.empty()) return op;
  const ScalarFunction& function = op.functions[0];
  op.keeps_zeros = function.keeps_zero;
  op.step = function_step;
  if (function.gradient) op.gradient = function.gradient;
  // Computing in float32 is worthwhile only for smooth functions and roundings. Sign, IsNaN and Not give the same result in 16 bits.
  const bool rounds = function.step == ChainOp::floor || function.step == ChainOp::ceil || function.step == ChainOp::round;
  if (function.step == ChainOp::unary || rounds) op.half = HalfFloats::float32;
  return op;
}

OpDef with_chain_steps(OpDef op, ChainOp forward, ChainOp reversed) {
  op.pointwise = true;
  op.chain = {forward, reversed, true};
  op.step = [](const Graph& graph, const Node& node) -> std::optional<PointwiseStep> {
    if (node.num_formal_inputs != 2 || !all_inputs_are(graph, node, DType::float32)) return std::nullopt;
    return PointwiseStep{{.op_type = node.op_type, .operands = {}, .attributes = {}}, node.inputs};
  };
  return op;
}

OpDef with_boolean_steps(OpDef op, ChainOp step) {
  op.pointwise = true;
  op.chain = {step, step, true};
  op.step = [](const Graph& graph, const Node& node) -> std::optional<PointwiseStep> {
    if (!all_inputs_are(graph, node, DType::boolean)) return std::nullopt;
    return PointwiseStep{{.op_type = node.op_type, .operands = {}, .attributes = {}}, node.inputs};
  };
  return op;
}

namespace {

/// Describes a node as a step of a chain of pointwise functions. @param floats  types that the function's operand may have
std::optional<PointwiseStep> step_of_types(const Graph& graph, const Node& node, TypeSet floats) {
  const ScalarFunction* function = function_of(node);
  const TypeSet from = function && function->step == ChainOp::logical_not ? kBool : floats;
  if (!function || !from.has(dtype_of_value(graph, node.inputs[0])) || !parameters_of(graph, node, *function)) return std::nullopt;
  PointwiseStep step{{.op_type = std::string(function->name), .operands = {}, .attributes = {}}, {node.inputs[0]}};
  if (!function->domain.empty()) step.step.op_type = fmt::format("{}:{}", function->domain, function->name);
  const FunctionParameters values = *parameters_of(graph, node, *function);
  auto write = [&](const ScalarFunction::Parameter& parameter, float value) {
    const bool given = parameter.input < 0 ? node.attributes.has(parameter.name) : node.has_input(static_cast<size_t>(parameter.input));
    if (!parameter.name.empty() && given) step.step.attributes.emplace_back(parameter.name, value);
  };
  write(function->a, values.a);
  write(function->b, values.b);
  return step;
}

}  // namespace

std::optional<PointwiseStep> function_step(const Graph& graph, const Node& node) { return step_of_types(graph, node, {DType::float32}); }

std::optional<PointwiseStep> typed_step(const Graph& graph, const Node& node) {
  if (!node.op || node.outputs.size() != 1 || !node.bodies.empty() || node.inputs.empty() || node.inputs[0] == kNoValue)
    return std::nullopt;
  std::optional<PointwiseStep> step = node.op->step ? node.op->step(graph, node) : std::nullopt;
  if (!step) step = step_of_types(graph, node, {DType::float16, DType::bfloat16});
  if (step) return step;
  const bool complete = std::all_of(node.inputs.begin(), node.inputs.end(), [](ValueId id) { return id != kNoValue; });
  if (!complete || !node.domain.empty()) return std::nullopt;
  step = PointwiseStep{{.op_type = node.op_type, .operands = {}, .attributes = {}}, node.inputs};
  if (node.is("Cast")) {
    step->step.attributes.emplace_back("to", static_cast<float>(graph.type(node.outputs[0]).dtype));
    return step;
  }
  if (!node.op->pointwise) return std::nullopt;
  for (const auto& [name, value] : node.attributes) {
    if (const auto* number = std::get_if<int64_t>(&value))
      step->step.attributes.emplace_back(name, static_cast<float>(*number));
    else if (const auto* real = std::get_if<float>(&value))
      step->step.attributes.emplace_back(name, *real);
    else
      return std::nullopt;
  }
  return step;
}

DType dtype_of_value(const Graph& graph, ValueId id) {
  if (id == kNoValue) return DType::undefined;
  const Type& type = graph.type(id);
  return type.is_tensor() && type.has_rank() ? type.dtype : DType::undefined;
}

bool has_one_element(const Graph& graph, ValueId id) {
  const Type& type = graph.type(id);
  return type.is_static() && type.static_shape().num_elements() == 1;
}

bool all_inputs_are(const Graph& graph, const Node& node, DType dtype, size_t first) {
  for (size_t i = first; i < node.inputs.size(); ++i)
    if (dtype_of_value(graph, node.inputs[i]) != dtype) return false;
  return true;
}

std::string write_gelu_slope(FunctionBody& b, const std::string& x) {
  const std::string half = b.number(0.5F);
  const std::string distribution = b.op("Mul", {half, b.op("Add", {b.number(1), b.op("Erf", {b.op("Mul", {x, b.number(0.70710678F)})})})});
  const std::string density = b.op("Mul", {b.number(0.39894228F), b.op("Exp", {b.op("Mul", {b.op("Mul", {x, x}), b.number(-0.5F)})})});
  return b.op("Add", {distribution, b.op("Mul", {x, density})});
}

const ScalarFunction* find_function_ignoring_case(std::string_view name) {
  auto lower = [](char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); };
  const auto* found = std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](const ScalarFunction& function) {
    return std::equal(name.begin(), name.end(), function.name.begin(), function.name.end(),
                      [&](char a, char b) { return lower(a) == lower(b); });
  });
  return found == std::end(kFunctions) ? nullptr : found;
}

Unary activation_named(std::string_view name) {
  if (name.empty() || name == "none") return Unary::none;
  const ScalarFunction* function = find_function(name);
  if (!function || function->code == Unary::none) throw Error(ErrorCode::invalid_model, fmt::format("there is no activation \"{}\"", name));
  return function->code;
}

}  // namespace ops
}  // namespace treadle
