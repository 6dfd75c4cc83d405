// Instructions that are bound while they run: data-dependent shapes, strings, sequences, and control flow.
#pragma once

#include <memory>
#include <vector>

#include "exec/frame.h"

namespace treadle::exec {

/// What If, Loop and Scan ask of the executor that runs them.
class ControlFlowCall {
 public:
  virtual ~ControlFlowCall() = default;
  virtual const Instruction& instruction() const = 0;
  virtual const Datum& input(int i) const = 0;
  virtual void set_output(int i, Datum datum) = 0;
  /// Runs body `b`: formal inputs, to which the captures are added. @return one value per output of the body.
  virtual std::vector<Datum> run_body(size_t b, std::vector<Datum> formal_inputs) = 0;

  bool has_input(int i) const { return instruction().node->has_input(static_cast<size_t>(i)); }
  size_t num_body_outputs(size_t b) const { return instruction().bodies[b]->output_slots().size(); }
};

class DynamicInstruction final : public ControlFlowCall {
 public:
  DynamicInstruction(Frame& frame, const Instruction& instruction, Evaluator& evaluator);
  void run();

  const Instruction& instruction() const override { return instruction_; }
  const Datum& input(int i) const override;
  void set_output(int i, Datum datum) override;
  std::vector<Datum> run_body(size_t b, std::vector<Datum> formal_inputs) override;

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
void run_control_flow(ControlFlowCall& call);

}  // namespace treadle::exec
