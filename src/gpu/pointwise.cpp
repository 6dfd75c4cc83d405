// Pointwise operators: writes a shader for each node, from the registry's description of its operator.
#include <spirv/unified1/GLSL.std.450.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <spirv/unified1/spirv.hpp>
#include <vector>

#include "gpu/elementwise_code.h"
#include "gpu/launch.h"
#include "graph/op_def.h"
#include "graph/scalar_function.h"
#include "kernels/elementwise/broadcast.h"
#include "ops/checks.h"

namespace treadle::gpu {
namespace {

using kernels::ChainOp;

constexpr int kMaxInputs = 4;

/// Writes an operator's computation on its operands.
using Formula = std::function<Value(ShaderWriter&, std::span<const Value>)>;

/// The node's shaders, indexed by the rank of the index space - 1.
struct PointwiseState final : PackedState {
  std::vector<int> operands;      ///< the inputs that the shader reads
  std::vector<float> parameters;  ///< what it is given besides
  std::vector<const vulkan::Shader*> by_rank;
};

struct Pointwise {
  using Shapes = std::array<std::span<const int64_t>, kMaxInputs>;
  kernels::BroadcastPlan<kMaxInputs> plan;

  static Pointwise over(const Shape& output, const Shapes& shapes) {
    Pointwise k{kernels::plan_broadcast<kMaxInputs>(output.dims(), shapes)};
    count32(k.plan.size);
    return k;
  }

  static Pointwise bind(BindContext& c) {
    const std::vector<int>& operands = c.packed<PointwiseState>().operands;
    Shapes shapes{};  // those beyond the last operand are scalars
    for (size_t i = 0; i < operands.size(); ++i) shapes[i] = c.shape(operands[i]).dims();
    return over(c.output_shape(0), shapes);
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<PointwiseState>();
    Push push;
    push.pointer(c.out<void>(0));
    for (const int operand : state.operands) push.pointer(c.in<void>(operand));
    push.word(count32(plan.size));
    push_extents(push, plan.rank, plan.dims);
    for (size_t i = 0; i < state.operands.size(); ++i)
      for (int axis = 0; axis < plan.rank; ++axis) push.word(static_cast<int32_t>(plan.strides[i][axis]));
    for (const float parameter : state.parameters) push.word(parameter);
    stream().dispatch(*state.by_rank.at(static_cast<size_t>(plan.rank - 1)), push.bytes(), groups_over(count32(plan.size)));
  }
};

/// QuantizeLinear and DequantizeLinear, whose scales and zero points lie along an axis, or are one number.
struct Quantization : Pointwise {
  static Quantization bind(BindContext& c) {
    const Shape& x = c.shape(0);
    const int64_t scales = c.num_elements(1);
    std::vector<int64_t> dims(static_cast<size_t>(x.rank()), 1);
    if (scales != 1) {
      const int axis = c.axis("axis", 1, x.rank());
      ops::check_equal(scales, x[axis], "scales, and elements of the axis");
      dims[static_cast<size_t>(axis)] = scales;
    }
    if (c.has_input(2)) ops::check_equal(c.num_elements(2), scales, "zero points and scales");
    return {over(x, {x.dims(), dims, dims})};
  }
};

bool fits(size_t inputs, size_t rank, size_t parameters) {
  return 8 * (1 + inputs) + 4 * rank + 4 * inputs * rank + 4 * parameters <= vulkan::kMaxPushBytes;
}

/// @param count       the formula reads so many inputs, the first ones
/// @param parameters  what ShaderWriter::parameter() is in the formula
template <typename Kernel = Pointwise>
DeviceKernel make(const Graph& graph, const Node& node, size_t count, const Formula& formula, std::vector<float> parameters = {}) {
  static const KernelDef kernel = treadle::kernel<Kernel>("gpu");
  std::vector<DType> inputs;
  for (size_t i = 0; i < count; ++i) inputs.push_back(graph.type(node.inputs[i]).dtype);
  const Type& output = graph.type(node.outputs[0]);
  // A rank that comes out in the run may be any; few operands lie in that many dimensions.
  const size_t rank = output.shape ? std::max<size_t>(output.shape->size(), 1) : size_t{kMaxSpaceRank};
  if (count > size_t{kMaxInputs} || rank > kMaxSpaceRank || !fits(count, rank, parameters.size())) return {};
  auto state = std::make_shared<PointwiseState>();
  for (size_t i = 0; i < count; ++i) state->operands.push_back(static_cast<int>(i));
  for (size_t r = 1; r <= rank; ++r) {
    ShaderWriter shader(inputs, output.dtype, static_cast<int>(r), false, static_cast<int>(parameters.size()));
    std::vector<Value> values;
    for (size_t i = 0; i < count; ++i) values.push_back(shader.load(i));
    shader.store(formula(shader, values));
    state->by_rank.push_back(&vulkan::Shader::of(shader.finish(), {}, node.op_type));
  }
  state->parameters = std::move(parameters);
  return {&kernel, std::move(state)};
}

/// Returns the kernel of a node that applies a function of one float32 to each element.
DeviceKernel make_function(const Graph& graph, const Node& node) {
  const ScalarFunction* function = function_of(node);
  if (!function || function->map) return {};
  const std::optional<FunctionParameters> parameters = parameters_of(graph, node, *function);
  if (!parameters) return {};
  if (function->step != ChainOp::unary)
    return make(graph, node, 1, [step = function->step](ShaderWriter& s, std::span<const Value> x) { return write_step(s, step, x[0]); });
  const Formula formula = [code = function->code](ShaderWriter& s, std::span<const Value> x) {
    return write_unary(s, code, s.parameter(0), s.parameter(1), x[0]);
  };
  return make(graph, node, 1, formula, {parameters->a, parameters->b});
}

/// Returns the formula that applies an operator to its operands from left to right.
Formula folded(ChainOp step) {
  return [step](ShaderWriter& s, std::span<const Value> x) {
    Value y = x[0];
    for (const Value& operand : x.subspan(1)) y = write_binary(s, step, y, operand);
    return y;
  };
}

/// Operators that are neither functions of one number nor steps of a chain.
struct OwnFormula {
  std::string_view op_type;
  Value (*write)(ShaderWriter& s, std::span<const Value> x);
};
const OwnFormula kOwnFormulas[] = {
    {"Identity", [](ShaderWriter&, std::span<const Value> x) { return x[0]; }},
    {"Where", [](ShaderWriter& s, std::span<const Value> x) { return s.select(x[0], x[1], x[2]); }},
    {"PRelu",
     [](ShaderWriter& s, std::span<const Value> x) { return s.select(s.less(x[0], s.number(0, x[0].type)), s.mul(x[0], x[1]), x[0]); }},
    {"Xor",
     [](ShaderWriter& s, std::span<const Value> x) {
       return s.op(spv::OpLogicalNotEqual, Arithmetic::boolean, {x[0], x[1]});
     }},
    {"BitwiseAnd",
     [](ShaderWriter& s, std::span<const Value> x) {
       return s.op(spv::OpBitwiseAnd, x[0].type, {x[0], x[1]});
     }},
    {"BitwiseOr",
     [](ShaderWriter& s, std::span<const Value> x) {
       return s.op(spv::OpBitwiseOr, x[0].type, {x[0], x[1]});
     }},
    {"BitwiseXor",
     [](ShaderWriter& s, std::span<const Value> x) {
       return s.op(spv::OpBitwiseXor, x[0].type, {x[0], x[1]});
     }},
    {"BitwiseNot", [](ShaderWriter& s, std::span<const Value> x) { return s.op(spv::OpNot, x[0].type, {x[0]}); }},
};

/// Supports float32 only, for functions without code for other types.
Value write_own_float(ShaderWriter& s, const Node& node, std::span<const Value> x) {
  if (node.op_type == "Pow") return write_pow(s, x[0], x[1]);
  const Value is_infinite = s.op(spv::OpIsInf, Arithmetic::boolean, {x[0]});
  const bool positive = node.attributes.get_int("detect_positive", 1) != 0, negative = node.attributes.get_int("detect_negative", 1) != 0;
  const Value is_negative = s.less(x[0], s.number(0));
  const Value wanted = s.select(is_negative, s.number(negative, Arithmetic::boolean), s.number(positive, Arithmetic::boolean));
  return s.op(spv::OpLogicalAnd, Arithmetic::boolean, {is_infinite, wanted});
}

/// Returns the formulas of Neg, Abs and Sign for integers and float64.
std::optional<Formula> wide_formula(const Node& node) {
  if (node.op_type == "Neg")
    return
        [](ShaderWriter& s, std::span<const Value> x) { return s.sub(s.number(x[0].type == Arithmetic::f64 ? -0.0 : 0, x[0].type), x[0]); };
  if (node.op_type == "Abs")
    return [](ShaderWriter& s, std::span<const Value> x) {
      const Value zero = s.number(0, x[0].type);
      return x[0].type == Arithmetic::f64 ? s.ext(GLSLstd450FAbs, Arithmetic::f64, {x[0]})
                                          : s.select(s.less(x[0], zero), s.sub(zero, x[0]), x[0]);
    };
  if (node.op_type == "Sign")
    return [](ShaderWriter& s, std::span<const Value> x) {
      const Value zero = s.number(0, x[0].type), one = s.number(1, x[0].type);
      const Value negative = s.select(s.less(x[0], zero), s.sub(zero, one), zero);
      const Value sign = s.select(s.less(zero, x[0]), one, negative);
      return x[0].type == Arithmetic::f64 ? s.select(s.is_nan(x[0]), x[0], sign) : sign;
    };
  return std::nullopt;
}

/// Returns kernels that quantise to integers of 8 and 16 bits, and dequantise from these and from integers of 32 bits.
DeviceKernel find_quantization(const Graph& graph, const Node& node) {
  const bool quantizes = node.op_type == "QuantizeLinear";
  const DType x = graph.type(node.inputs[0]).dtype, y = graph.type(node.outputs[0]).dtype, codes = quantizes ? y : x;
  if (!graph.type(node.inputs[0]).has_rank() || !graph.type(node.inputs[1]).has_rank()) return {};
  const DType scale = graph.type(node.inputs[1]).dtype;
  const size_t rank = graph.type(node.inputs[1]).shape->size(), count = node.has_input(2) ? 3 : 2;
  Arithmetic number{}, code{}, by{};
  if (!arithmetic_of(quantizes ? x : y, number) || !arithmetic_of(scale, by) || !arithmetic_of(codes, code)) return {};
  const bool is_wide = bits_of(codes) > 16;
  if (number != Arithmetic::f32 || by != Arithmetic::f32 || !is_integer(codes) || (is_wide && (quantizes || codes != DType::int32)))
    return {};
  // A quotient may be asked for in 16 bits. Scales of blocks have the input's rank.
  if (quantizes && (scale != DType::float32 || node.attributes.get_int("precision", static_cast<int64_t>(scale)) > 1)) return {};
  if (node.attributes.get_int("block_size") != 0 || rank > 1 || (rank == 1 && graph.type(node.inputs[0]).shape->size() < 2)) return {};
  if (!quantizes)
    return make<Quantization>(graph, node, count, [](ShaderWriter& s, std::span<const Value> v) {
      const Value zero = v.size() > 2 ? s.convert(v[2], Arithmetic::f32) : s.number(0);
      return s.mul(s.sub(s.convert(v[0], Arithmetic::f32), zero), s.convert(v[1], Arithmetic::f32));
    });
  const bool is_signed = codes == DType::int8 || codes == DType::int16;
  const double lowest = is_signed ? -std::ldexp(1, static_cast<int>(bits_of(codes)) - 1) : 0;
  const double highest = lowest + std::ldexp(1, static_cast<int>(bits_of(codes))) - 1;
  // Bounds are whole numbers, so that it does not matter whether they come before rounding.
  return make<Quantization>(graph, node, count, [lowest, highest, code](ShaderWriter& s, std::span<const Value> v) {
    const Value zero = v.size() > 2 ? s.convert(v[2], Arithmetic::f32) : s.number(0);
    const Value low = s.sub(s.number(lowest), zero), high = s.sub(s.number(highest), zero);
    Value q = s.div(v[0], v[1]);
    q = s.select(s.less(low, q), q, low);
    q = s.select(s.less(q, high), q, high);
    return s.convert(s.add(s.ext(GLSLstd450RoundEven, Arithmetic::f32, {q}), zero), code);
  });
}

}  // namespace

DeviceKernel find_pointwise(const Graph& graph, const Node& node) {
  const auto count = static_cast<size_t>(node.num_formal_inputs);
  if (!node.domain.empty() || node.outputs.size() != 1 || count < 1) return {};
  if (node.op_type == "QuantizeLinear" || node.op_type == "DequantizeLinear") return find_quantization(graph, node);
  Arithmetic in{}, out{};
  if (!arithmetic_of(graph.type(node.inputs[0]).dtype, in) || !arithmetic_of(graph.type(node.outputs[0]).dtype, out)) return {};
  bool complete = true, alike = true;  // complete: all inputs exist; alike: they have one type
  for (size_t i = 0; i < count; ++i) {
    Arithmetic type{};
    complete &= node.has_input(i) && arithmetic_of(graph.type(node.inputs[i]).dtype, type);
    alike &= type == in;
  }
  if (node.op_type == "Cast") {
    // A negative float wraps when converted to unsigned integers of 8 and 16 bits, as on the host.
    const bool wraps = in == Arithmetic::f32 && out == Arithmetic::u32 && bits_of(graph.type(node.outputs[0]).dtype) < 32;
    return make(graph, node, 1, [out, wraps](ShaderWriter& s, std::span<const Value> x) {
      return s.convert(wraps ? s.convert(x[0], Arithmetic::i32) : x[0], out);
    });
  }
  if (complete)
    for (const OwnFormula& own : kOwnFormulas)
      if (node.op_type == own.op_type) return make(graph, node, count, own.write);
  // Integer division stays on the host, which can report a division by zero.
  const bool divides = node.op->chain.forward == ChainOp::div && in != Arithmetic::f32 && in != Arithmetic::f64;
  if (complete && alike && node.op->chain.given && !divides) return make(graph, node, count, folded(node.op->chain.forward));
  if (in == Arithmetic::f32 || in == Arithmetic::boolean) {
    if (complete && alike && (node.op_type == "IsInf" || node.op_type == "Pow"))
      return make(graph, node, count, [&node](ShaderWriter& s, std::span<const Value> x) { return write_own_float(s, node, x); });
    return make_function(graph, node);
  }
  const std::optional<Formula> formula = wide_formula(node);
  return formula ? make(graph, node, 1, *formula) : DeviceKernel();
}

}  // namespace treadle::gpu
