#include "exec/dynamic.h"

#include <fmt/format.h>

#include "treadle/error.h"

namespace treadle::exec {

DynamicInstruction::DynamicInstruction(Frame& frame, const Instruction& instruction, Evaluator& evaluator)
    : frame_(frame),
      instruction_(instruction),
      evaluator_(evaluator),
      operands_(frame.program_.operands(instruction)),
      inputs_(instruction.num_inputs),
      outputs_(instruction.num_outputs) {}

const Datum& DynamicInstruction::input(int i) const {
  auto k = static_cast<size_t>(i);
  if (!inputs_[k].defined() && operands_[k] >= 0) inputs_[k] = frame_.datum_of(operands_[k], /*shared=*/true);
  return inputs_[k];
}

void DynamicInstruction::set_output(int i, Datum datum) {
  if (i < static_cast<int>(outputs_.size())) outputs_[static_cast<size_t>(i)] = std::move(datum);
}

void DynamicInstruction::run() {
  if (instruction_.node->op->control_flow != ControlFlow::none) {
    run_control_flow(*this);
    if (frame_.control_.pass)  // the next node's bodies need the room
      for (const auto& body : instruction_.bodies) body->frames().trim();
  } else {
    run_kernel();
  }
  for (int i = 0; i < instruction_.num_outputs; ++i) {
    if (output_slot(i) < 0) continue;
    if (!outputs_[static_cast<size_t>(i)].defined()) throw Error(ErrorCode::internal, fmt::format("output {} was not made", i));
    frame_.hold(output_slot(i), std::move(outputs_[static_cast<size_t>(i)]));
  }
}

void DynamicInstruction::run_kernel() {
  std::vector<Datum> views(instruction_.num_inputs);  // without copies: they live as long as this call
  for (size_t i = 0; i < views.size(); ++i)
    if (operands_[i] >= 0) views[i] = frame_.datum_of(operands_[i], /*shared=*/false);
  std::vector<DType> dtypes(instruction_.num_outputs, DType::undefined);
  for (int i = 0; i < instruction_.num_outputs; ++i)
    if (output_slot(i) >= 0) dtypes[static_cast<size_t>(i)] = frame_.program_.slots()[static_cast<size_t>(output_slot(i))].dtype;
  evaluator_.pool = frame_.control_.pool;
  evaluator_.run_id = frame_.control_.run_id;
  evaluator_.stop_requested = [control = &frame_.control_] { return control->stopping(); };
  outputs_ = evaluate_node(*instruction_.node, *instruction_.kernel, instruction_.packed.get(), views, dtypes, evaluator_);
}

std::vector<Datum> DynamicInstruction::run_body(size_t b, std::vector<Datum> formal_inputs) {
  frame_.control_.check();  // a body may have no instruction at all
  const Program& program = *instruction_.bodies[b];
  const Body& body = instruction_.node->bodies[b];
  for (const auto& capture : body.captures)
    formal_inputs.push_back(frame_.datum_of(operands_[static_cast<size_t>(instruction_.node->num_formal_inputs + capture.second)], false));
  std::vector<Datum> results(program.output_slots().size());
  exec::run(program, formal_inputs, results, frame_.control_, {}, frame_.binding_->values());
  return results;
}

}  // namespace treadle::exec
