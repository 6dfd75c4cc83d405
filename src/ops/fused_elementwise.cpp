// FusedElementwise (treadle): pointwise operators, of inputs that broadcast against each other, in one pass over memory. The attribute
// "steps" has one text per operator; see ElementwiseStep. Everything is computed in float32; truth values are 0 and 1.
#include "ops/fused_elementwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/treadle_domain.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::ChainOp;
using kernels::ChainProgram;
using kernels::ChainStep;
using kernels::kMaxChainInputs;
using kernels::kMaxChainSlots;
using kernels::Unary;

struct BinaryOperator {
  std::string_view name;
  ChainOp op, reversed;  // acc op x; x op acc
};
constexpr BinaryOperator kBinary[] = {
    {"Add", ChainOp::add, ChainOp::add},
    {"Sub", ChainOp::sub, ChainOp::reverse_sub},
    {"Mul", ChainOp::mul, ChainOp::mul},
    {"Div", ChainOp::div, ChainOp::reverse_div},
    {"Max", ChainOp::max, ChainOp::max},
    {"Min", ChainOp::min, ChainOp::min},
    {"Less", ChainOp::less, ChainOp::greater},
    {"LessOrEqual", ChainOp::less_or_equal, ChainOp::greater_or_equal},
    {"Greater", ChainOp::greater, ChainOp::less},
    {"GreaterOrEqual", ChainOp::greater_or_equal, ChainOp::less_or_equal},
    {"Equal", ChainOp::equal, ChainOp::equal},
    {"And", ChainOp::logical_and, ChainOp::logical_and},
    {"Or", ChainOp::logical_or, ChainOp::logical_or},
};

struct UnaryOperator {
  std::string_view name;
  ChainOp op;
  Unary function = Unary::none;
  std::string_view a = {}, b = {};  // attributes, with ONNX's defaults
  float a_default = 0, b_default = 0;
};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr UnaryOperator kUnary[] = {
    {"Relu", ChainOp::unary, Unary::relu},
    {"Clip", ChainOp::unary, Unary::clip, "min", "max", -kInfinity, kInfinity},
    {"LeakyRelu", ChainOp::unary, Unary::leaky_relu, "alpha", "", 0.01F},
    {"Elu", ChainOp::unary, Unary::elu, "alpha", "", 1},
    {"Sigmoid", ChainOp::unary, Unary::sigmoid},
    {"HardSigmoid", ChainOp::unary, Unary::hard_sigmoid, "alpha", "beta", 0.2F, 0.5F},
    {"HardSwish", ChainOp::unary, Unary::hard_swish},
    {"Swish", ChainOp::unary, Unary::silu, "alpha", "", 1},
    {"Tanh", ChainOp::unary, Unary::tanh},
    {"Softplus", ChainOp::unary, Unary::softplus},
    {"Softsign", ChainOp::unary, Unary::softsign},
    {"Mish", ChainOp::unary, Unary::mish},
    {"Gelu", ChainOp::unary, Unary::gelu},
    {"GeluTanh", ChainOp::unary, Unary::gelu_tanh},
    {"Exp", ChainOp::unary, Unary::exp},
    {"Log", ChainOp::unary, Unary::log},
    {"Erf", ChainOp::unary, Unary::erf},
    {"Sin", ChainOp::unary, Unary::sin},
    {"Cos", ChainOp::unary, Unary::cos},
    {"Tan", ChainOp::unary, Unary::tan},
    {"Asin", ChainOp::unary, Unary::asin},
    {"Acos", ChainOp::unary, Unary::acos},
    {"Atan", ChainOp::unary, Unary::atan},
    {"Sinh", ChainOp::unary, Unary::sinh},
    {"Cosh", ChainOp::unary, Unary::cosh},
    {"Asinh", ChainOp::unary, Unary::asinh},
    {"Acosh", ChainOp::unary, Unary::acosh},
    {"Atanh", ChainOp::unary, Unary::atanh},
    {"Sqrt", ChainOp::unary, Unary::sqrt},
    {"Reciprocal", ChainOp::unary, Unary::reciprocal},
    {"Abs", ChainOp::unary, Unary::abs},
    {"Neg", ChainOp::unary, Unary::neg},
    {"Floor", ChainOp::floor},
    {"Ceil", ChainOp::ceil},
    {"Round", ChainOp::round},
    {"Sign", ChainOp::sign},
    {"IsNaN", ChainOp::is_nan},
    {"Not", ChainOp::logical_not},
    {"ToFloat", ChainOp::unary, Unary::none},  // Cast to float32
    {"ToBool", ChainOp::truth},                // Cast to bool
};

const BinaryOperator* find_binary(std::string_view name) {
  const auto* found = std::find_if(std::begin(kBinary), std::end(kBinary), [&](const BinaryOperator& op) { return op.name == name; });
  return found == std::end(kBinary) ? nullptr : found;
}
const UnaryOperator* find_unary(std::string_view name) {
  const auto* found = std::find_if(std::begin(kUnary), std::end(kUnary), [&](const UnaryOperator& op) { return op.name == name; });
  return found == std::end(kUnary) ? nullptr : found;
}

/// Puts the steps in an order for one accumulator, and what has to wait into slots.
class Compiler {
 public:
  Compiler(std::span<const std::string> texts, std::vector<DType> inputs, DType output) : num_inputs_(inputs.size()) {
    if (texts.empty() || texts.size() > kernels::kMaxChainSteps || num_inputs_ > kMaxChainInputs)
      throw Error(ErrorCode::resource_exhausted, fmt::format("a chain of {} steps and {} inputs", texts.size(), num_inputs_));
    for (const std::string& text : texts) {
      steps_.push_back(ElementwiseStep::parse(text));
      for (size_t operand : steps_.back().operands)
        if (operand >= num_inputs_ + steps_.size() - 1)
          throw Error(ErrorCode::invalid_model, fmt::format("operand {} is not known yet", operand));
    }
    uses_.resize(num_inputs_ + steps_.size());
    slots_.resize(uses_.size());
    for (const ElementwiseStep& step : steps_)
      for (size_t operand : step.operands) ++uses_[operand];
    program_.inputs = std::move(inputs);
    program_.output = output;
  }

  ChainProgram compile() {
    const size_t result = num_inputs_ + steps_.size() - 1;
    uses_[result] = 1;
    emit(result);
    return std::move(program_);
  }

 private:
  bool in_memory(size_t value) const { return value < num_inputs_ || slots_[value].has_value(); }
  uint8_t place(size_t value) const { return static_cast<uint8_t>(value < num_inputs_ ? value : kMaxChainInputs + *slots_[value]); }
  void add(ChainStep step) {
    if (program_.steps.size() >= kernels::kMaxChainSteps) throw Error(ErrorCode::resource_exhausted, "a chain of too many steps");
    program_.steps.push_back(step);
  }
  void keep(size_t value) {
    const auto free = std::find(taken_.begin(), taken_.end(), false);
    if (free == taken_.end()) throw Error(ErrorCode::resource_exhausted, "a chain with too many values that wait");
    *free = true;
    slots_[value] = static_cast<uint8_t>(free - taken_.begin());
    add({ChainOp::keep, place(value)});
  }
  // One reading of the value is done.
  void release(size_t value) {
    if (--uses_[value] > 0 || value < num_inputs_ || !slots_[value]) return;
    taken_[*slots_[value]] = false;
    slots_[value].reset();
  }
  // Computes the value, if it is not there, and leaves it where a step can read it.
  void to_memory(size_t value) {
    if (in_memory(value)) return;
    emit(value);
    if (!in_memory(value)) keep(value);
  }

  /// Leaves the value in the accumulator.
  void emit(size_t value) {
    if (in_memory(value)) return add({ChainOp::load, place(value)});
    const ElementwiseStep& step = steps_[value - num_inputs_];
    emit_step(step);
    if (uses_[value] > 1) keep(value);
  }

  void emit_step(const ElementwiseStep& step) {
    auto expect = [&](size_t count) {
      if (step.operands.size() != count)
        throw Error(ErrorCode::invalid_model, fmt::format("\"{}\" has {} operands, not {}", step.to_string(), step.operands.size(), count));
    };
    if (const BinaryOperator* op = find_binary(step.op_type)) {
      expect(2);
      return emit_binary(*op, step.operands[0], step.operands[1]);
    }
    if (const UnaryOperator* op = find_unary(step.op_type)) {
      expect(1);
      const size_t x = step.operands[0];
      emit(x);
      release(x);
      if (op->op == ChainOp::unary && op->function == Unary::none) return;
      return add({op->op, 0, 0, op->function, step.attribute(op->a, op->a_default), step.attribute(op->b, op->b_default)});
    }
    if (step.op_type == "Where") {
      expect(3);
      const size_t condition = step.operands[0], x = step.operands[1], y = step.operands[2];
      to_memory(x);
      to_memory(y);
      emit(condition);
      add({ChainOp::select, place(x), place(y)});
      release(condition), release(x), release(y);
      return;
    }
    if (step.op_type == "QuantizeLinear") {  // x, scale, zero
      expect(3);
      const size_t x = step.operands[0], scale = step.operands[1], zero = step.operands[2];
      to_memory(scale);
      to_memory(zero);
      emit(x);
      add({ChainOp::div, place(scale)});
      add({ChainOp::quantize, place(zero), 0, Unary::none, step.attribute("low", 0), step.attribute("high", 255)});
      release(x), release(scale), release(zero);
      return;
    }
    if (step.op_type == "DequantizeLinear") {  // x, scale, zero
      expect(3);
      const size_t x = step.operands[0], scale = step.operands[1], zero = step.operands[2];
      to_memory(scale);
      to_memory(zero);
      emit(x);
      add({ChainOp::sub, place(zero)});
      add({ChainOp::mul, place(scale)});
      release(x), release(scale), release(zero);
      return;
    }
    throw Error(ErrorCode::invalid_model, fmt::format("a chain cannot compute \"{}\"", step.to_string()));
  }

  void emit_binary(const BinaryOperator& op, size_t x, size_t y) {
    bool reversed = false;
    if (!in_memory(y) && in_memory(x)) {
      std::swap(x, y);
      reversed = true;
    }
    to_memory(y);  // of x and y that are the same step, x is then in memory, too
    emit(x);
    add({reversed ? op.reversed : op.op, place(y)});
    release(x), release(y);
  }

  size_t num_inputs_;
  std::vector<ElementwiseStep> steps_;
  std::vector<int> uses_;                      // by value: readings that are still to come
  std::vector<std::optional<uint8_t>> slots_;  // by value
  std::vector<bool> taken_ = std::vector<bool>(kMaxChainSlots, false);
  ChainProgram program_;
};

void infer(InferContext& c) {
  const auto dtype = static_cast<DType>(c.get_int("dtype", static_cast<int64_t>(DType::float32)));
  std::optional<SymbolicShape> shape;
  for (int i = 0; i < c.num_inputs(); ++i) {
    if (!c.has_rank(i)) return c.set_output_dtype(0, dtype);
    shape = shape ? broadcast(*shape, c.shape(i)) : c.shape(i);
  }
  c.set_output(0, dtype, *shape);
}

Cost cost(const ShapeContext& c) {
  double bytes = 0;
  for (int i = 0; i < c.num_inputs(); ++i) bytes += c.size_bytes(i);
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {outputs * static_cast<double>(c.node().attributes.get_strings("steps").size()),
          bytes + outputs * static_cast<double>(bits_of(c.output_dtype(0))) / 8};
}

struct CompiledChain final : PackedState {
  ChainProgram program;
};

struct FusedElementwise {
  kernels::ChainPlan plan;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto state = std::make_unique<CompiledChain>();
    std::vector<DType> inputs;
    for (int i = 0; i < c.node().num_formal_inputs; ++i) inputs.push_back(c.dtype(i));
    state->program = compile_chain(c.attributes().get_strings("steps"), std::move(inputs), c.output_dtype(0));
    return state;
  }
  static FusedElementwise bind(BindContext& c) {
    FusedElementwise k{};
    k.plan.size = c.output_shape(0).num_elements();
    for (int i = 0; i < c.num_inputs(); ++i) k.plan.inputs[i] = kernels::plan_chain_input(c.output_shape(0).dims(), c.shape(i).dims());
    return k;
  }
  void run(RunContext& c) const {
    const ChainProgram& program = c.packed<CompiledChain>().program;
    const void* inputs[kMaxChainInputs];
    for (size_t i = 0; i < program.inputs.size(); ++i) inputs[i] = c.in<void>(static_cast<int>(i));
    kernels::run_chain(program, plan, inputs, c.out<void>(0), c.pool());
  }
};

}  // namespace

kernels::ChainProgram compile_chain(std::span<const std::string> steps, std::vector<DType> inputs, DType output) {
  return Compiler(steps, std::move(inputs), output).compile();
}

bool is_chain_operator(std::string_view op_type) {
  return find_binary(op_type) || find_unary(op_type) || op_type == "Where" || op_type == "QuantizeLinear" || op_type == "DequantizeLinear";
}

std::vector<OpDef> fused_elementwise_ops() {
  constexpr TypeSet kInputs{DType::float32, DType::boolean, DType::uint8, DType::int8, DType::int32};
  constexpr TypeSet kOutputs{DType::float32, DType::boolean, DType::uint8, DType::int8};
  return {{.name = "FusedElementwise",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"inputs", kInputs, "", Presence::variadic}},
           .outputs = {{"output", kOutputs}},
           .attributes = {{"dtype", int64_t{1}}, {"steps"}},
           .infer = infer,
           .cost = cost,
           .kernels = {kernel<FusedElementwise>("chain")}}};
}

}  // namespace treadle::ops
