// Concatenations whose inputs are written straight into their output, and splits whose outputs are views of their input: as a whole, one
// behind the other, or row by row, where kernels ask how far rows are apart (KernelDef::strided_inputs, strided_outputs).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "exec/program/parallel_plan.h"
#include "exec/program/program.h"

namespace treadle::exec {

/// A slot lies in the bytes of `base` (kNoSlot: it has bytes of its own), behind as many bytes as the operands `preceding` have.
struct Places {
  struct Operands {
    uint32_t first = 0, count = 0;  ///< of Program::operands()
  };
  explicit Places(size_t num_slots) : base(num_slots, kNoSlot), preceding(num_slots) {}
  IdVector<SlotId, SlotId> base;
  IdVector<SlotId, Operands> preceding;
};

/// How what a node joins or splits lies in the whole.
enum class Join : uint8_t {
  none,    ///< not in place: elements are less than bytes, or what lies between them is more than rows
  whole,   ///< one behind the other: no axis before the node's own has more than one row
  by_rows  ///< along the last axis, of a known length: the rows of one lie between those of the others
};
Join join_of(const Graph& graph, const Node& node);

/// True if the kernel asks how far the rows of the operand are apart. What joins or splits along another axis than the last does not.
bool takes_steps(const Graph& graph, const Instruction& instruction, size_t operand);

/// Elements of a row, a run along the last axis. @pre the extent is known, as those of operands of a node that joins by rows are.
int64_t row_length(const Program& program, SlotId slot);

/// Moves values that a Concat reads into the Concat's output, and makes views of Concats whose inputs lie one after the other already, from
/// the last one to the first: of Concats that have an input in common (a dense block) the last one gets it, and the others become views of
/// what it has so far. The nodes stay and copy what did not come to lie in place. A value moves if everything that touches its bytes has
/// been settled by then: whatever writes them runs before the Concat, and whoever reads them does so before the output is written over in
/// place.
/// @param slots    with the roots of views and of outputs written over their inputs, and the steps of what a Split cut by rows; changed.
/// @param elided   instructions that will not run.
/// @param order    of instructions that may run at once; null: they run one after the other.
/// @param allowed  whether a Concat may take its inputs.
void place_in_outputs(const Program& program, IdSpan<SlotId, Slot> slots, Places& places, const IdVector<InstructionId, bool>& elided,
                      const Reachability* order, const std::function<bool(InstructionId)>& allowed);

}  // namespace treadle::exec
