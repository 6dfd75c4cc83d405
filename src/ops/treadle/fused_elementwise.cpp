// Implements FusedElementwise (treadle): a chain of pointwise operators with broadcasting inputs, computed in one pass over memory. The
// attribute "steps" has a text for each operator, see ElementwiseStep. The host computes all steps in float32, with 0 and 1 as truth
// values. Devices compute each step in the type of its operands, and support more types.
#include "ops/treadle/fused_elementwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "graph/function_body.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/functions.h"
#include "ops/treadle/chained_products.h"
#include "ops/treadle/domain.h"
#include "ops/treadle/on_devices.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::ChainOp;
using kernels::ChainProgram;
using kernels::ChainStep;
using kernels::kMaxChainInputs;
using kernels::kMaxChainSlots;
using kernels::Unary;

/// Finds the operator that a step names, as "Add" or "domain:Type".
const OpDef* operator_of(std::string_view step) {
  const size_t colon = step.find(':');
  return colon == std::string_view::npos ? find_op("", step) : find_op(step.substr(0, colon), step.substr(colon + 1));
}

/// Orders the steps for an interpreter that has one accumulator. Values that are needed later are assigned slots of memory.
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
  // Called after a step has read `value`. Frees its slot if no later step reads it.
  void release(size_t value) {
    if (--uses_[value] > 0 || value < num_inputs_ || !slots_[value]) return;
    taken_[*slots_[value]] = false;
    slots_[value].reset();
  }
  // Computes the value, if this has not been done yet, and stores it in a slot, from which later steps can read it.
  void to_memory(size_t value) {
    if (in_memory(value)) return;
    emit(value);
    if (!in_memory(value)) keep(value);
  }

  /// Adds the steps that compute the value into the accumulator.
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
    if (const ScalarFunction* function = find_function(step.op_type)) {
      expect(1);
      const size_t x = step.operands[0];
      emit(x);
      release(x);
      if (function->map) return add({.op = ChainOp::unary, .map = function->map, .context = function->context});
      if (function->step == ChainOp::unary && function->code == Unary::none) return;
      auto value = [&](const ScalarFunction::Parameter& p) { return p.name.empty() ? 0 : step.attribute(p.name, p.otherwise); };
      return add({function->step, 0, 0, function->code, value(function->a), value(function->b)});
    }
    const OpDef* op = operator_of(step.op_type);
    if (op && op->chain.given) {
      expect(2);
      return emit_binary(op->chain, step.operands[0], step.operands[1]);
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
    if (step.op_type == "QuantizeLinear") {  // the operands are x, scale and zero point
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
    if (step.op_type == "DequantizeLinear") {  // the operands are x, scale and zero point
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

  void emit_binary(const ChainSteps& op, size_t x, size_t y) {
    bool reversed = false;
    if (!in_memory(y) && in_memory(x)) {
      std::swap(x, y);
      reversed = true;
    }
    to_memory(y);  // if x and y are the same value, x is in the slot, too
    emit(x);
    add({reversed ? op.reversed : op.forward, place(y)});
    release(x), release(y);
  }

  size_t num_inputs_;
  std::vector<ElementwiseStep> steps_;
  std::vector<int> uses_;                      // for each value, how many steps still have to read it
  std::vector<std::optional<uint8_t>> slots_;  // for each value, the slot that it is stored in, if any
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

constexpr TypeSet kHostInputs{DType::float32, DType::boolean, DType::uint8, DType::int8, DType::int32};
constexpr TypeSet kHostOutputs{DType::float32, DType::boolean, DType::uint8, DType::int8};

struct CompiledChain final : PackedState {
  ChainProgram program;
};

struct FusedElementwise {
  kernels::ChainPlan plan;

  static std::string declines(const CreateContext& c) {
    for (int i = 0; i < c.node().num_formal_inputs; ++i)
      if (!kHostInputs.has(c.dtype(i))) return fmt::format("only devices compute chains of {}", name_of(c.dtype(i)));
    return kHostOutputs.has(c.output_dtype(0)) ? "" : fmt::format("only devices compute chains that give {}", name_of(c.output_dtype(0)));
  }
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

// Writes a step as ONNX nodes. Casts and quantization are not in the table of functions, because they need types.
std::string write_step(FunctionBody& b, const ElementwiseStep& step, const std::vector<std::string>& operands) {
  const std::string& op = step.op_type;
  if (op == "ToFloat") return b.op("Cast", operands, {{"to", static_cast<int64_t>(DType::float32)}});
  if (op == "Cast") return b.op(op, operands, {{"to", static_cast<int64_t>(step.attribute("to", 1))}});
  if (op == "treadle:GeluSlope") return write_gelu_slope(b, operands[0]);
  if (op == "ToBool") return b.op("Cast", operands, {{"to", static_cast<int64_t>(DType::boolean)}});
  if (const ScalarFunction* function = find_function(op))
    return b.function(*function, operands[0], step.attribute(function->a.name, function->a.otherwise),
                      step.attribute(function->b.name, function->b.otherwise));
  if (op == "DequantizeLinear" || op == "QuantizeLinear") {
    // An absent zero point is represented by the number 0, which is cast to the dtype of the codes.
    const int64_t dtype = static_cast<int64_t>(step.attribute("low", 0) < 0 ? DType::int8 : DType::uint8);
    const std::string zero =
        op == "DequantizeLinear" ? b.op("CastLike", {operands[2], operands[0]}) : b.op("Cast", {operands[2]}, {{"to", dtype}});
    return b.op(op, {operands[0], operands[1], zero});
  }
  return b.op(op, operands);
}

int oldest_opset(const Node& node) {
  int opset = 1;
  for (const std::string& text : node.attributes.get_strings("steps")) {
    const std::string op_type = ElementwiseStep::parse(text).op_type;
    if (op_type == "ToFloat" || op_type == "ToBool") continue;
    opset = std::max(opset, op_type == "treadle:GeluSlope" ? 9 : function_opset(find_function(op_type)));
    if (op_type == "DequantizeLinear") opset = std::max(opset, 15);  // it is written with CastLike
  }
  return opset;
}

void write_function(FunctionBody& b) {
  std::vector<std::string> values;
  for (size_t i = 0; i < b.num_inputs(); ++i) values.push_back(b.in(i));
  for (const std::string& text : b.attributes().get_strings("steps")) {
    const ElementwiseStep step = ElementwiseStep::parse(text);
    std::vector<std::string> operands;
    for (size_t operand : step.operands) operands.push_back(values.at(operand));
    values.push_back(write_step(b, step, operands));
  }
  b.give(0, values.back());
}

}  // namespace

kernels::ChainProgram compile_chain(std::span<const std::string> steps, std::vector<DType> inputs, DType output) {
  return Compiler(steps, std::move(inputs), output).compile();
}

std::vector<Alias> over_chain_inputs(int first, int beside) {
  std::vector<Alias> aliases;
  for (int i = 0; i < kMaxChainInputs; ++i) aliases.push_back(may_reuse(0, first + i));
  if (beside >= 0) aliases.push_back(may_reuse(0, beside));
  return aliases;
}

std::vector<OpDef> fused_elementwise_ops() {
  constexpr TypeSet kTypes = kNumeric | kBool;
  std::vector<OpDef> ops{{.name = "FusedElementwise",
                          .domain = "treadle",
                          .since = {1},
                          .inputs = {{"inputs", kTypes, "", Presence::variadic}},
                          .outputs = {{"output", kTypes}},
                          .attributes = {{"dtype", int64_t{1}, dtype_among(kTypes)}, {"steps"}},
                          .infer = infer,
                          .cost = cost,
                          .alias = over_chain_inputs(0),
                          .kernels = {kernel<FusedElementwise>("chain"), on_devices_only()},
                          .write_function = write_function,
                          .function_opset = oldest_opset}};
  std::vector<OpDef> chained = chained_products();
  for (OpDef& op : chained) ops.push_back(std::move(op));
  return ops;
}

}  // namespace treadle::ops
