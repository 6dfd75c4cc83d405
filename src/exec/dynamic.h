// Instructions that are bound while they run: data-dependent shapes, strings, sequences, and control flow.
#pragma once

#include <memory>
#include <vector>

#include "exec/frame.h"

namespace treadle::exec {

class DynamicInstruction {
 public:
  DynamicInstruction(Frame& frame, const Instruction& instruction, Evaluator& evaluator);
  void run();

  // For control flow.
  const Instruction& instruction() const { return instruction_; }
  const Datum& input(int i) const;
  void set_output(int i, Datum datum);
  bool has_input(int i) const { return instruction_.node->has_input(static_cast<size_t>(i)); }
  /// Runs body `b`: formal inputs, to which the captures are added. @return one value per output of the body.
  std::vector<Datum> run_body(size_t b, std::vector<Datum> formal_inputs);
  size_t num_body_outputs(size_t b) const { return instruction_.bodies[b]->output_slots().size(); }

 private:
  void run_kernel();
  int32_t output_slot(int i) const { return operands_[static_cast<size_t>(instruction_.num_inputs + i)]; }

  Frame& frame_;
  const Instruction& instruction_;
  Evaluator& evaluator_;  // of the thread
  std::span<const int32_t> operands_;
  mutable std::vector<Datum> inputs_;  // shared, made when asked for
  std::vector<Datum> outputs_;
};

/// Executes If, Loop or Scan. In control_flow.cpp.
void run_control_flow(DynamicInstruction& instruction);

}  // namespace treadle::exec
