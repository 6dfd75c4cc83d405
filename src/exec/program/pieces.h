// Avoids the copies of Concat and Split: inputs of a Concat are written straight into its output, and outputs of a Split are views of its
// input. The pieces lie one after the other, or interleaved row by row if all kernels involved accept a row stride
// (KernelDef::strided_inputs, strided_outputs).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "exec/program/parallel_plan.h"
#include "exec/program/program.h"

namespace treadle::exec {

/// The location of each slot: within the bytes of slot `base` (kNoSlot: bytes of its own), at the total size of the operands `preceding`.
struct Places {
  struct Operands {
    uint32_t first = 0, count = 0;  ///< a range in Program::operands()
  };
  explicit Places(size_t num_slots) : base(num_slots, kNoSlot), preceding(num_slots) {}
  IdVector<SlotId, SlotId> base;
  IdVector<SlotId, Operands> preceding;
};

/// Says how the pieces of a Concat or Split are arranged in the whole.
enum class Join : uint8_t {
  none,    ///< not in place: elements are smaller than a byte, or the pieces are neither contiguous nor interleaved by rows
  whole,   ///< each piece is contiguous: all axes before the node's axis have extent 1
  by_rows  ///< the node's axis is the last one, and all its extents are constants: rows of the pieces are interleaved
};
Join join_of(const Graph& graph, const Node& node);

/// Returns true if the kernel accepts a row stride for the operand. A Concat or Split along another axis than the last one does not.
bool takes_steps(const Graph& graph, const Instruction& instruction, size_t operand);

/// Returns the number of elements in a row, the extent of the last axis.
/// @pre the extent is a constant, as for all operands of a node with Join::by_rows
int64_t row_length(const Program& program, SlotId slot);

/// Moves inputs of Concats into the Concats' outputs. A Concat whose inputs already lie one after the other becomes a view. Concats are
/// visited from the last to the first: if several read the same value (a dense block), the last one gets it, and the others become views of
/// parts of that output. The Concat nodes stay, and copy the inputs that could not be moved. A value moves if all instructions that write
/// its bytes run before the Concat, and all that read them run before an instruction that writes over the Concat's output in place.
/// @param slots    in: roots of views and of outputs made in place, and row steps of the outputs of Splits. Updated for what moves.
/// @param elided   instructions that will not run
/// @param order    which instruction happens before which, if independent ones may run at the same time; null: they run in order
/// @param allowed  returns whether this Concat's inputs may be moved
void place_in_outputs(const Program& program, IdSpan<SlotId, Slot> slots, Places& places, const IdVector<InstructionId, bool>& elided,
                      const Reachability* order, const std::function<bool(InstructionId)>& allowed);

}  // namespace treadle::exec
