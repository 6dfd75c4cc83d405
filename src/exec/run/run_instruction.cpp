#include "exec/run/run_instruction.h"

#include <new>
#include <stdexcept>
#include <typeinfo>
#include <utility>

#include "core/base/fault.h"
#include "core/base/node_fault.h"
#include "core/trace/memory_events.h"
#include "exec/memory/memory_pass.h"
#include "exec/run/control_flow.h"
#include "exec/run/frame.h"
#include "graph/deferred.h"
#include "graph/op_def.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {

void rethrow_of_kernel() {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw OutOfMemory("out of memory");
  } catch (const std::length_error&) {
    throw OutOfMemory("more elements than memory can have");
  } catch (const std::exception& error) {
    throw Error(ErrorCode::internal, error.what());
  }
}

Cost cost_of(const Program& program, const Instruction& instruction, std::span<const Datum> operands) {
  const OpDef* op = instruction.node->op;
  if (!op || !op->cost || !instruction.bodies.empty()) return {};
  const auto slots = program.operands(instruction);
  std::vector<Shape> shapes(slots.size());
  std::vector<DType> dtypes(slots.size(), DType::undefined);
  std::vector<const Shape*> pointers;
  for (size_t k = 0; k < slots.size(); ++k) {
    pointers.push_back(&shapes[k]);
    if (slots[k] == kNoSlot) continue;
    const bool there = operands[k].is_tensor() && operands[k].tensor().defined();
    // A constant may be missing because all kernels have packed it and it has been freed. Its type is still known.
    if (!there && !program.type(slots[k]).is_static()) return {};
    shapes[k] = there ? operands[k].tensor().shape() : program.type(slots[k]).static_shape();
    dtypes[k] = there ? operands[k].tensor().dtype() : program.type(slots[k]).dtype;
  }
  ShapeContext context(*instruction.node);
  context.shapes_ = pointers;
  context.dtypes_ = dtypes;
  return op->cost(context);
}

void rethrow_from(const Instruction& instruction, const std::string& where, const std::string& operands) {
  auto with_node = [&](Error& error) { error.add_context(describe(*instruction.node) + ", " + where, operands); };
  try {
    throw;
  } catch (Error& error) {
    with_node(error);
    const bool of_operands = error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::invalid_model;
    if (!of_operands || (typeid(error) != typeid(Error) && typeid(error) != typeid(Fault))) throw;
    throw NodeFault(error, instruction.node->op_type, instruction.node->domain, instruction.node->name);
  } catch (const std::bad_alloc&) {
    OutOfMemory error("out of memory");
    with_node(error);
    throw error;
  }
}

namespace {

// What surrounds the call of a dynamic kernel: marks for tracing tools, the node that its allocations are recorded for, the allocation
// context, and records of its phases.
struct NodeSurroundings {
  NodeSurroundings(const Instruction& instruction, const RunControl& control)
      : mark(*instruction.node),
        holder(instruction.record_name),
        room(context_in_nodes(control.memory.pass), AllocationScope::current_class()),
        phases(control.recording.kernel_phases, instruction.record_name, control.recording.run, instruction.whole_phase()) {}
  const NodeMark mark;
  const MemoryHolder holder;
  const AllocationScope room;
  const PhaseNode phases;
};

// @param kept  true if the inputs may be used after the call has ended
std::vector<Datum> inputs_of(const Instruction& instruction, const OperandSource& operands, bool kept) {
  std::vector<Datum> inputs(instruction.num_inputs);
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = operands.operand(i, kept);
  return inputs;
}

std::vector<DType> output_dtypes(const Program& program, const Instruction& instruction) {
  const auto slots = program.operands(instruction).subspan(instruction.num_inputs);
  std::vector<DType> dtypes(slots.size(), DType::undefined);
  for (size_t i = 0; i < dtypes.size(); ++i)
    if (slots[i] != kNoSlot) dtypes[i] = program.slots()[slots[i]].dtype;
  return dtypes;
}

}  // namespace

std::vector<Datum> run_dynamic(FramePool& frames, const Instruction& instruction, const Binding& binding, const RunControl& control,
                               const OperandSource& operands, Evaluator& evaluator) {
  HostBodies bodies(frames);
  std::vector<Datum> made = run_dynamic(bodies, instruction, binding, control, operands, evaluator);
  if (control.memory.pass)  // under a limit, the memory is freed for the bodies of the next node
    for (const auto& body : instruction.bodies) frames.of_body(*body).trim();
  return made;
}

std::vector<Datum> run_dynamic(BodyRunner& bodies, const Instruction& instruction, const Binding& binding, const RunControl& control,
                               const OperandSource& operands, Evaluator& evaluator) {
  const NodeSurroundings around(instruction, control);
  if (instruction.node->op->control_flow != ControlFlow::none) return run_control_flow(bodies, instruction, binding, control, operands);
  const std::vector<Datum> inputs = inputs_of(instruction, operands, /*kept=*/false);
  const std::vector<DType> dtypes = output_dtypes(binding.program(), instruction);
  try {
    return evaluate_node(*instruction.node, *instruction.kernel, binding.packed(instruction), inputs, dtypes, evaluator);
  } catch (...) {
    rethrow_of_kernel();
  }
}

void run_deferred(const Instruction& instruction, const Binding& binding, const RunControl& control, const OperandSource& operands,
                  std::function<bool()> stop_requested, std::function<void(std::vector<Datum> outputs, std::exception_ptr error)> done) {
  const NodeSurroundings around(instruction, control);
  evaluate_deferred({.node = instruction.node,
                     .kernel = instruction.kernel,
                     .packed = binding.packed(instruction),
                     .inputs = inputs_of(instruction, operands, /*kept=*/true),
                     .output_dtypes = output_dtypes(binding.program(), instruction),
                     .pool = control.threads.pool,
                     .run_id = control.run_id,
                     .stop_requested = std::move(stop_requested),
                     .done = std::move(done)});
}

}  // namespace treadle::exec
