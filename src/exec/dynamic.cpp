#include "exec/dynamic.h"

#include <fmt/format.h>

#include "core/thread_pool.h"
#include "graph/infer.h"
#include "treadle/error.h"

namespace treadle::exec {

DynamicInstruction::DynamicInstruction(Frame& frame, const Instruction& instruction)
    : frame_(frame), instruction_(instruction), operands_(frame.program_.operands(instruction)), inputs_(instruction.num_inputs), outputs_(instruction.num_outputs) {}

const Datum& DynamicInstruction::input(int i) const {
  auto k = static_cast<size_t>(i);
  if (!inputs_[k].defined() && operands_[k] >= 0) inputs_[k] = frame_.datum_of(operands_[k], /*shared=*/true);
  return inputs_[k];
}

Tensor DynamicInstruction::allocate_output(int i, const Shape& shape) {
  int32_t slot = output_slot(i);
  DType dtype = slot < 0 ? DType::uint8 : frame_.program_.slots()[static_cast<size_t>(slot)].dtype;
  Tensor tensor(dtype, shape);
  outputs_[static_cast<size_t>(i)] = tensor;
  return tensor;
}

void DynamicInstruction::set_output(int i, Datum datum) {
  if (i < static_cast<int>(outputs_.size())) outputs_[static_cast<size_t>(i)] = std::move(datum);
}

void DynamicInstruction::run() {
  if (instruction_.node->op->control_flow != ControlFlow::none) run_control_flow(*this);
  else run_kernel();
  for (int i = 0; i < instruction_.num_outputs; ++i) {
    if (output_slot(i) < 0) continue;
    if (!outputs_[static_cast<size_t>(i)].defined()) throw Error(ErrorCode::internal, fmt::format("output {} was not made", i));
    frame_.hold(output_slot(i), std::move(outputs_[static_cast<size_t>(i)]));
  }
}

void DynamicInstruction::run_kernel() {
  const Node& node = *instruction_.node;
  const KernelDef& kernel = *instruction_.kernel;
  size_t num_inputs = instruction_.num_inputs, num_operands = operands_.size();
  std::vector<Datum> views(num_inputs);  // without copies: they live as long as this call
  std::vector<Shape> shapes(num_operands);
  std::vector<DType> dtypes(num_operands, DType::undefined);
  std::vector<const Tensor*> values(num_operands, nullptr);
  std::vector<void*> pointers(num_operands, nullptr);
  std::vector<InferContext::Operand> types(num_inputs);
  for (size_t i = 0; i < num_inputs; ++i) {
    if (operands_[i] < 0) continue;
    views[i] = frame_.datum_of(operands_[i], /*shared=*/false);
    if (views[i].is_tensor()) {
      const Tensor& tensor = views[i].tensor();
      shapes[i] = tensor.shape();
      dtypes[i] = tensor.dtype();
      values[i] = &tensor;
      pointers[i] = tensor.raw();
    }
    types[i] = {Type::of(views[i]), values[i], std::nullopt};
  }
  if (!kernel.allocates) {
    SymbolTable symbols;
    InferContext context(node, symbols, types, {});
    node.op->infer(context);
    for (int i = 0; i < instruction_.num_outputs; ++i) {
      if (output_slot(i) < 0) continue;
      const Type& type = context.outputs[static_cast<size_t>(i)];
      if (!type.is_static()) throw Error(ErrorCode::internal, fmt::format("inference left output {} as {}", i, to_string(type)));
      size_t k = num_inputs + static_cast<size_t>(i);
      Tensor made = allocate_output(i, type.static_shape());
      shapes[k] = made.shape();
      pointers[k] = made.raw();
    }
  }
  for (int i = 0; i < instruction_.num_outputs; ++i)
    if (output_slot(i) >= 0) dtypes[num_inputs + static_cast<size_t>(i)] = frame_.program_.slots()[static_cast<size_t>(output_slot(i))].dtype;

  std::vector<const Shape*> shape_pointers;
  for (const Shape& shape : shapes) shape_pointers.push_back(&shape);
  BindContext bind(node);
  bind.shapes_ = shape_pointers;
  bind.dtypes_ = dtypes;
  bind.values_ = values;
  bind.packed_ = instruction_.packed.get();
  bind.max_threads_ = frame_.control_.pool ? frame_.control_.pool->num_threads() : 1;
  void* state = frame_.dynamic_state_.get();
  kernel.bind(state, bind);
  if (frame_.dynamic_scratch_.size() < bind.scratch_bytes() + Storage::kAlignment) frame_.dynamic_scratch_.resize(bind.scratch_bytes() + Storage::kAlignment);
  auto address = reinterpret_cast<uintptr_t>(frame_.dynamic_scratch_.data());
  auto* scratch = reinterpret_cast<void*>((address + Storage::kAlignment - 1) & ~(Storage::kAlignment - 1));
  RunContext context(pointers.data(), static_cast<int>(num_inputs), scratch, frame_.control_.pool, instruction_.packed.get());
  context.run_id = frame_.control_.run_id;
  context.dynamic_ = this;
  kernel.run(state, context);
}

std::vector<Datum> DynamicInstruction::run_body(size_t b, std::vector<Datum> formal_inputs) {
  const Program& program = *instruction_.bodies[b];
  const Body& body = instruction_.node->bodies[b];
  for (const auto& capture : body.captures) formal_inputs.push_back(frame_.datum_of(operands_[static_cast<size_t>(instruction_.node->num_formal_inputs + capture.second)], false));
  std::vector<Datum> results(program.output_slots().size());
  exec::run(program, formal_inputs, results, frame_.control_, {}, frame_.binding_->values());
  return results;
}

}  // namespace treadle::exec
