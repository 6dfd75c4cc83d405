#include "gpu/chain.h"

#include <spirv/unified1/GLSL.std.450.h>

#include <algorithm>
#include <cmath>
#include <spirv/unified1/spirv.hpp>
#include <utility>

#include "gpu/elementwise_code.h"
#include "graph/op_def.h"
#include "graph/scalar_function.h"

namespace treadle::gpu {
namespace {

using kernels::ChainOp;

/// The code that a step of a chain adds to a shader, and the dtype of its result.
struct StepCode {
  Formula write;
  DType result = DType::undefined;
};

/// Returns code that applies a binary step to its operands from left to right.
Formula folded(ChainOp step) {
  return [step](CodeWriter& s, std::span<const Value> x) {
    Value y = x[0];
    for (const Value& operand : x.subspan(1)) y = write_binary(s, step, y, operand);
    return y;
  };
}

bool gives_truth(ChainOp step) {
  switch (step) {
    case ChainOp::less:
    case ChainOp::less_or_equal:
    case ChainOp::greater:
    case ChainOp::greater_or_equal:
    case ChainOp::equal:
    case ChainOp::logical_and:
    case ChainOp::logical_or:
    case ChainOp::logical_not:
    case ChainOp::is_nan:
    case ChainOp::truth: return true;
    default: return false;
  }
}

/// Operators that are neither functions of one operand nor binary steps of the host's chains. The result has the dtype of the last operand.
struct OwnFormula {
  std::string_view op_type;
  size_t num_operands;
  Value (*write)(CodeWriter& s, std::span<const Value> x);
};
const OwnFormula kOwnFormulas[] = {
    {"Where", 3, [](CodeWriter& s, std::span<const Value> x) { return s.select(x[0], x[1], x[2]); }},
    {"PRelu", 2,
     [](CodeWriter& s, std::span<const Value> x) { return s.select(s.less(x[0], s.number(0, x[0].type)), s.mul(x[0], x[1]), x[0]); }},
    {"Xor", 2,
     [](CodeWriter& s, std::span<const Value> x) {
       return s.op(spv::OpLogicalNotEqual, Arithmetic::boolean, {x[0], x[1]});
     }},
    {"BitwiseAnd", 2,
     [](CodeWriter& s, std::span<const Value> x) {
       return s.op(spv::OpBitwiseAnd, x[0].type, {x[0], x[1]});
     }},
    {"BitwiseOr", 2,
     [](CodeWriter& s, std::span<const Value> x) {
       return s.op(spv::OpBitwiseOr, x[0].type, {x[0], x[1]});
     }},
    {"BitwiseXor", 2,
     [](CodeWriter& s, std::span<const Value> x) {
       return s.op(spv::OpBitwiseXor, x[0].type, {x[0], x[1]});
     }},
    {"BitwiseNot", 1, [](CodeWriter& s, std::span<const Value> x) { return s.op(spv::OpNot, x[0].type, {x[0]}); }},
};

Formula shrinking(const ElementwiseStep& step) {
  const auto bound = static_cast<double>(step.attribute("lambd", 0.5F)), bias = static_cast<double>(step.attribute("bias", 0));
  return [bound, bias](CodeWriter& s, std::span<const Value> x) {
    const Value above = s.select(s.less(s.number(bound), x[0]), s.sub(x[0], s.number(bias)), s.number(0));
    return s.select(s.less(x[0], s.number(-bound)), s.add(x[0], s.number(bias)), above);
  };
}

Formula infinity_test(const ElementwiseStep& step) {
  const bool positive = step.attribute("detect_positive", 1) != 0, negative = step.attribute("detect_negative", 1) != 0;
  return [positive, negative](CodeWriter& s, std::span<const Value> x) {
    const Value is_infinite = s.op(spv::OpIsInf, Arithmetic::boolean, {x[0]});
    const Value is_negative = s.less(x[0], s.number(0));
    const Value wanted = s.select(is_negative, s.number(negative, Arithmetic::boolean), s.number(positive, Arithmetic::boolean));
    return s.op(spv::OpLogicalAnd, Arithmetic::boolean, {is_infinite, wanted});
  };
}

/// Returns the code of Abs, Neg or Sign for integers and float64.
std::optional<Formula> wide_formula(std::string_view op_type) {
  if (op_type == "Neg")
    return
        [](CodeWriter& s, std::span<const Value> x) { return s.sub(s.number(x[0].type == Arithmetic::f64 ? -0.0 : 0, x[0].type), x[0]); };
  if (op_type == "Abs")
    return [](CodeWriter& s, std::span<const Value> x) {
      const Value zero = s.number(0, x[0].type);
      return x[0].type == Arithmetic::f64 ? s.ext(GLSLstd450FAbs, Arithmetic::f64, {x[0]})
                                          : s.select(s.less(x[0], zero), s.sub(zero, x[0]), x[0]);
    };
  if (op_type == "Sign")
    return [](CodeWriter& s, std::span<const Value> x) {
      const Value zero = s.number(0, x[0].type), one = s.number(1, x[0].type);
      const Value negative = s.select(s.less(x[0], zero), s.sub(zero, one), zero);
      const Value sign = s.select(s.less(zero, x[0]), one, negative);
      return x[0].type == Arithmetic::f64 ? s.select(s.is_nan(x[0]), x[0], sign) : sign;
    };
  return std::nullopt;
}

std::optional<StepCode> cast_code(const ElementwiseStep& step, DType from, Arithmetic in) {
  const float number = step.attribute("to", 0);
  const DType to = number >= 0 && number < static_cast<float>(kNumDTypes) ? static_cast<DType>(number) : DType::undefined;
  Arithmetic out{};
  if (step.operands.size() != 1 || !arithmetic_of(to, out)) return std::nullopt;
  // As on the host, a negative float that is converted to an unsigned integer of 8 or 16 bits wraps around.
  const bool wraps = is_float(from) && in == Arithmetic::f32 && out == Arithmetic::u32 && bits_of(to) < 32;
  return StepCode{
      [out, wraps](CodeWriter& s, std::span<const Value> x) { return s.convert(wraps ? s.convert(x[0], Arithmetic::i32) : x[0], out); },
      to};
}

/// Returns the code of a pointwise function of one operand; nullopt if shaders do not support it for the type.
std::optional<StepCode> function_code(const ElementwiseStep& step, const ScalarFunction& function, DType from, Arithmetic in) {
  if (function.map || step.operands.size() != 1) return std::nullopt;
  const bool converts = function.step == ChainOp::unary && function.code == kernels::Unary::none;  // ToFloat
  if (converts) return StepCode{[](CodeWriter& s, std::span<const Value> x) { return s.convert(x[0], Arithmetic::f32); }, DType::float32};
  if (in != Arithmetic::f32 && in != Arithmetic::boolean) {
    std::optional<Formula> wide = wide_formula(step.op_type);
    return wide ? std::optional(StepCode{std::move(*wide), from}) : std::nullopt;
  }
  if (in == Arithmetic::boolean && function.step != ChainOp::logical_not && function.step != ChainOp::truth) return std::nullopt;
  if (function.step != ChainOp::unary)
    return StepCode{[op = function.step](CodeWriter& s, std::span<const Value> x) { return write_step(s, op, x[0]); },
                    gives_truth(function.step) ? DType::boolean : from};
  auto value = [&](const ScalarFunction::Parameter& p) {
    return static_cast<double>(p.name.empty() ? 0 : step.attribute(p.name, p.otherwise));
  };
  return StepCode{[code = function.code, a = value(function.a), b = value(function.b)](CodeWriter& s, std::span<const Value> x) {
                    return write_unary(s, code, s.number(a), s.number(b), x[0]);
                  },
                  from};
}

/// Returns true if the operator accepts this number of operands with these types. This is checked because steps may come from a file.
bool takes(const OpDef& op, std::span<const DType> types) {
  if (op.inputs.empty()) return false;
  const auto required =
      std::count_if(op.inputs.begin(), op.inputs.end(), [](const Port& port) { return port.presence == Presence::required; });
  if (static_cast<ptrdiff_t>(types.size()) < required) return false;
  if (types.size() > op.inputs.size() && op.inputs.back().presence != Presence::variadic) return false;
  for (size_t i = 0; i < types.size(); ++i) {
    const Port& port = op.inputs[std::min(i, op.inputs.size() - 1)];
    if (!port.types.has(types[i])) return false;
    for (size_t k = 0; k < i; ++k)
      if (op.inputs[std::min(k, op.inputs.size() - 1)].type_name == port.type_name && !port.type_name.empty() && types[k] != types[i])
        return false;
  }
  return true;
}

/// Returns the code of a step; nullopt if shaders do not support it. @param types  dtypes of the operands
std::optional<StepCode> code_of(const ElementwiseStep& step, std::span<const DType> types) {
  std::vector<Arithmetic> arithmetic(types.size());
  for (size_t i = 0; i < types.size(); ++i)
    if (!arithmetic_of(types[i], arithmetic[i])) return std::nullopt;
  const Arithmetic in = arithmetic[0];
  const bool alike = std::all_of(arithmetic.begin(), arithmetic.end(), [&](Arithmetic type) { return type == in; });
  if (step.op_type == "Cast") return cast_code(step, types[0], in);
  // These steps always have three operands: an absent zero point is represented by the number 0.
  if (step.op_type == "QuantizeLinear" || step.op_type == "DequantizeLinear") {
    if (types.size() != 3 || arithmetic[1] != Arithmetic::f32) return std::nullopt;
    if (step.op_type == "DequantizeLinear") return StepCode{write_dequantization, DType::float32};
    const DType codes = step.attribute("low", 0) < 0 ? DType::int8 : DType::uint8;
    return in == Arithmetic::f32 ? std::optional(StepCode{quantization_formula(codes), codes}) : std::nullopt;
  }
  const OpDef* op = find_op("", step.op_type);
  if (op && !takes(*op, types)) return std::nullopt;
  for (const OwnFormula& own : kOwnFormulas)
    if (step.op_type == own.op_type && types.size() == own.num_operands) return StepCode{own.write, types.back()};
  if (const ScalarFunction* function = find_function(step.op_type)) return function_code(step, *function, types[0], in);
  if (step.op_type == "Pow" && types.size() == 2 && in == Arithmetic::f32 && arithmetic[1] != Arithmetic::f64)
    return StepCode{[](CodeWriter& s, std::span<const Value> x) { return write_pow(s, x[0], s.convert(x[1], Arithmetic::f32)); }, types[0]};
  if (!op || !alike) return std::nullopt;
  // Integer division is excluded: it has a kernel of its own, which reports divisions by zero.
  if (op->chain.given && op->chain.forward == ChainOp::div && in != Arithmetic::f32 && in != Arithmetic::f64) return std::nullopt;
  if (op->chain.given) return StepCode{folded(op->chain.forward), gives_truth(op->chain.forward) ? DType::boolean : types[0]};
  if (in != Arithmetic::f32) return std::nullopt;
  if (step.op_type == "IsInf" && types.size() == 1) return StepCode{infinity_test(step), DType::boolean};
  if (step.op_type == "Shrink") return StepCode{shrinking(step), types[0]};
  return std::nullopt;
}

}  // namespace

std::optional<Formula> chain_formula(std::span<const ElementwiseStep> steps, std::vector<DType> inputs, DType output) {
  struct Coded {
    StepCode code;
    std::vector<size_t> operands;
  };
  std::vector<Coded> coded;
  std::vector<DType> types = std::move(inputs);
  for (const ElementwiseStep& step : steps) {
    std::vector<DType> of_operands;
    for (const size_t operand : step.operands) {
      if (operand >= types.size()) return std::nullopt;
      of_operands.push_back(types[operand]);
    }
    std::optional<StepCode> code = of_operands.empty() ? std::nullopt : code_of(step, of_operands);
    if (!code) return std::nullopt;
    types.push_back(code->result);
    coded.push_back({std::move(*code), step.operands});
  }
  if (coded.empty() || types.back() != output) return std::nullopt;
  return [coded = std::move(coded)](CodeWriter& s, std::span<const Value> x) {
    std::vector<Value> values(x.begin(), x.end()), operands;
    for (const Coded& step : coded) {
      operands.clear();
      for (const size_t operand : step.operands) operands.push_back(values[operand]);
      const Value result = step.code.write(s, operands);
      // The last result is not rounded here, because it is rounded when it is stored.
      values.push_back(&step == &coded.back() ? result : s.rounded(result, step.code.result));
    }
    return values.back();
  };
}

Formula quantization_formula(DType codes) {
  if (!is_integer(codes))
    return [](CodeWriter& s, std::span<const Value> v) {
      const Value q = s.div(v[0], s.convert(v[1], Arithmetic::f32));
      return v.size() > 2 ? s.add(q, v[2]) : q;
    };
  Arithmetic code = Arithmetic::f32;
  arithmetic_of(codes, code);
  const double highest = std::ldexp(1, static_cast<int>(bits_of(codes)) - (is_signed_integer(codes) ? 1 : 0)) - 1;
  const double lowest = is_signed_integer(codes) ? -highest - 1 : 0;
  // Clamps before rounding. The bounds are whole numbers, so this gives the same result.
  return [lowest, highest, code](CodeWriter& s, std::span<const Value> v) {
    const Value zero = v.size() > 2 ? s.convert(v[2], Arithmetic::f32) : s.number(0);
    const Value low = s.sub(s.number(lowest), zero), high = s.sub(s.number(highest), zero);
    Value q = s.div(v[0], s.convert(v[1], Arithmetic::f32));
    q = s.select(s.less(low, q), q, low);
    q = s.select(s.less(q, high), q, high);
    return s.convert(s.add(s.ext(GLSLstd450RoundEven, Arithmetic::f32, {q}), zero), code);
  };
}

Value write_dequantization(CodeWriter& s, std::span<const Value> v) {
  const Value zero = v.size() > 2 ? s.convert(v[2], Arithmetic::f32) : s.number(0);
  return s.mul(s.sub(s.convert(v[0], Arithmetic::f32), zero), s.convert(v[1], Arithmetic::f32));
}

}  // namespace treadle::gpu
