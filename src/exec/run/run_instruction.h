// How an instruction runs, on whatever schedule: the only place that calls a kernel.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "core/kernel_phases.h"
#include "exec/plan/binding.h"
#include "exec/program/program.h"
#include "exec/run/run_control.h"
#include "exec/run/trace_marks.h"
#include "graph/evaluate.h"
#include "graph/op_def.h"
#include "treadle/datum.h"
#include "treadle/error.h"

namespace treadle::exec {

class FramePool;

/// What a kernel throws that is no Error becomes one. Called in a catch clause.
[[noreturn]] void rethrow_of_kernel();

/// Of an instruction that is bound ahead. @param pointers  one an operand, inputs first.
inline void run_static(const Instruction& instruction, const Binding& binding, void** pointers, void* scratch, const RunControl& control) {
  const NodeMark mark(*instruction.node);
  const PhaseNode phases(control.recording.kernel_phases, instruction.record_name, control.recording.run, instruction.whole_phase());
  RunContext context(pointers, instruction.num_inputs, instruction.num_outputs, scratch, control.threads.pool, binding.packed(instruction));
  context.run_id = control.run_id;
  try {
    instruction.run(binding.state(instruction), context);
  } catch (...) {
    rethrow_of_kernel();
  }
}

/// The operands of an instruction that is bound in the run, where the run has them.
class OperandSource {
 public:
  virtual ~OperandSource() = default;
  /// @param kept  the value may outlive the call: it must not lie in memory that the run uses again.
  virtual Datum operand(size_t input, bool kept) const = 0;
};

/// Of an instruction that is bound in the run: control flow, data-dependent shapes, strings, sequences.
/// @param frames     of the program, for bodies.
/// @param evaluator  of the thread; its pool, run_id, stop_requested and allocate are set.
/// @return one value per output; undefined for an absent one.
std::vector<Datum> run_dynamic(FramePool& frames, const Instruction& instruction, const Binding& binding, const RunControl& control,
                               const OperandSource& operands, Evaluator& evaluator);

/// The same for a kernel that may go on elsewhere when this returns.
/// @param stop_requested  whether it need not end.
/// @param done            called once, with the outputs or an error: here, or later on the thread on which the kernel ends.
void run_deferred(const Instruction& instruction, const Binding& binding, const RunControl& control, const OperandSource& operands,
                  std::function<bool()> stop_requested, std::function<void(std::vector<Datum> outputs, std::exception_ptr error)> done);

/// What an instruction costs for these operands, inputs first; nothing if its operator does not say, or one of them is no plain tensor.
Cost cost_of(const Program& program, const Instruction& instruction, std::span<const Datum> operands);

/// The error under way goes on with the node's name. Called in a catch clause.
/// @param where     "while running", and on what.
/// @param operands  names and types of its inputs.
[[noreturn]] void rethrow_from(const Instruction& instruction, const std::string& where, const std::string& operands);

/// If, Loop or Scan, as control_flow.cpp executes it.
class ControlFlowCall {
 public:
  ControlFlowCall(FramePool& frames, const Instruction& instruction, const Binding& binding, const RunControl& control,
                  const OperandSource& operands)
      : frames_(frames),
        instruction_(instruction),
        binding_(binding),
        control_(control),
        operands_(operands),
        inputs_(instruction.num_inputs),
        outputs_(instruction.num_outputs) {}

  const Instruction& instruction() const { return instruction_; }
  bool has_input(int i) const { return instruction_.node->has_input(static_cast<size_t>(i)); }
  const Datum& input(int i);
  void set_output(int i, Datum datum) {
    if (i < static_cast<int>(outputs_.size())) outputs_[static_cast<size_t>(i)] = std::move(datum);
  }
  /// Of an expression; negative if the feeds' shapes do not determine it.
  int64_t value_of(const Dim& extent) const {
    const auto index = static_cast<size_t>(extent.expr()->index);
    return index < binding_.values().size() ? binding_.values()[index] : -1;
  }
  size_t num_body_outputs(size_t b) const { return instruction_.bodies[b]->output_slots().size(); }
  /// Runs body `b`: formal inputs, to which the captures are added. @return one value per output of the body.
  std::vector<Datum> run_body(size_t b, std::vector<Datum> formal_inputs);
  std::vector<Datum> take_outputs() { return std::move(outputs_); }

 private:
  FramePool& frames_;
  const Instruction& instruction_;
  const Binding& binding_;
  const RunControl& control_;
  const OperandSource& operands_;
  std::vector<Datum> inputs_, outputs_;
  uint64_t iterations_ = 0;
};

void run_control_flow(ControlFlowCall& call);

}  // namespace treadle::exec
