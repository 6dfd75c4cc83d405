// Avoids the copies of Concat and Split: inputs of a Concat are written straight into its output, and outputs of a Split are views of its
// input. The pieces are stored one after the other, or interleaved row by row if all kernels involved accept a row stride
// (KernelDef::strided_inputs, strided_outputs).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "exec/program/parallel_plan.h"
#include "exec/program/program.h"

namespace treadle::exec {

/// Where each slot lies: in the bytes of slot `base` (kNoSlot: its own), at an offset equal to the total size of the operands `preceding`.
struct Places {
  struct Operands {
    uint32_t first = 0, count = 0;  ///< a range in Program::operands()
  };
  explicit Places(size_t num_slots) : base(num_slots, kNoSlot), preceding(num_slots) {}
  IdVector<SlotId, SlotId> base;
  IdVector<SlotId, Operands> preceding;
};

/// How the pieces of a Concat or Split are arranged in the whole value.
enum class Join : uint8_t {
  none,    ///< not in place: elements are smaller than a byte, or the pieces are neither contiguous nor interleaved by rows
  whole,   ///< each piece is contiguous: all axes before the node's axis have extent 1
  by_rows  ///< the node's axis is the last one, and all its extents are constants: rows of the pieces are interleaved
};
Join join_of(const Graph& graph, const Node& node);

/// Returns true if the kernel accepts a row stride for the operand. A Concat or Split must be along the last axis for that.
bool takes_steps(const Graph& graph, const Instruction& instruction, size_t operand);

/// Returns the number of elements in a row, the extent of the last axis.
/// @pre the extent is a constant, as for all operands of a node with Join::by_rows
int64_t row_length(const Program& program, SlotId slot);

/// Moves inputs of Concats into the Concats' outputs. A Concat whose inputs already lie one after the other becomes a view. Concats are
/// visited from the last to the first: if several read the same value (a dense block), it moves into the output of the last one, and the
/// others become views of parts of that output. The other Concats still run, to copy the inputs that could not be moved. A value moves if
/// all its writers run before the Concat, and all its readers run before any instruction overwrites the Concat's output.
/// @param slots    the slots, with the roots whose bytes they share and the row strides of Splits' outputs. Updated for values that move.
/// @param elided   instructions that will not run
/// @param order    dependencies between instructions, if independent ones may run at the same time; null: they run in sequence
/// @param allowed  returns true if this Concat's inputs may be moved
void place_in_outputs(const Program& program, IdSpan<SlotId, Slot> slots, Places& places, const IdVector<InstructionId, bool>& elided,
                      const Reachability* order, const std::function<bool(InstructionId)>& allowed);

}  // namespace treadle::exec
