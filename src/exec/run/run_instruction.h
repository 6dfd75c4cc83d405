// Runs the kernels of instructions. Every kind of run uses these functions; nothing else calls kernels.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "core/trace/kernel_phases.h"
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

/// Converts the current exception, thrown by a kernel, into an Error and throws it. Call it in a catch clause.
[[noreturn]] void rethrow_of_kernel();

/// Runs an instruction whose kernel was bound before the run. @param pointers one per operand, inputs first
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

/// Finds the operands of a dynamic instruction (one whose kernel is bound during the run).
class OperandSource {
 public:
  virtual ~OperandSource() = default;
  /// Returns a value. @param kept  true if the value may be used after the call has ended; then it is never in memory that the run reuses
  virtual Datum operand(size_t input, bool kept) const = 0;
};

/// Binds and runs a dynamic instruction: control flow, data-dependent shapes, strings, sequences.
/// @param frames     the pools of frames that run the bodies
/// @param evaluator  belongs to the thread; the caller has set its pool, run_id, stop_requested and allocate.
/// @return one value per output, undefined if the output is absent
std::vector<Datum> run_dynamic(FramePool& frames, const Instruction& instruction, const Binding& binding, const RunControl& control,
                               const OperandSource& operands, Evaluator& evaluator);

/// Starts a dynamic instruction of a custom operator. The kernel may continue on another thread after this function returns.
/// @param stop_requested  returns true if the result is no longer needed
/// @param done            called once with the outputs or an error: before the return, or later on the thread on which the kernel ends
void run_deferred(const Instruction& instruction, const Binding& binding, const RunControl& control, const OperandSource& operands,
                  std::function<bool()> stop_requested, std::function<void(std::vector<Datum> outputs, std::exception_ptr error)> done);

/// Returns the cost of an instruction for these operands, inputs first. The cost is zero if the operator declares none, or if an operand is
/// not a plain tensor.
Cost cost_of(const Program& program, const Instruction& instruction, std::span<const Datum> operands);

/// Rethrows the current exception with the node's name. Call it in a catch clause.
/// @param where     text that says what was being done, e.g. "while running", and on which device
/// @param operands  names and types of the inputs
[[noreturn]] void rethrow_from(const Instruction& instruction, const std::string& where, const std::string& operands);

}  // namespace treadle::exec
