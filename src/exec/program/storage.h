// What a program's values need besides their elements: buffers of the arena, memory that a run holds, pointers that it sets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/program/ids.h"

namespace treadle {
class Graph;
}

namespace treadle::exec {

struct Instruction;
struct Places;
struct Slot;

/// Bytes of the arena that are in use from one instruction to another.
struct BufferInfo {
  SlotId slot;                ///< whose size it has; kNoSlot: scratch of an instruction
  InstructionId instruction;  ///< scratch: whose
  InstructionId first, last;  ///< that use it, both inclusive
};

/// A value that lies behind the first bytes of another one's: those of `base`, and behind all of the preceding values, or the first row of
/// each if it has a Slot::row_step.
struct Piece {
  SlotId slot, base;
  uint32_t first_preceding, num_preceding;  ///< into Program::operands()
};

struct ProgramStorage {
  IdVector<BufferId, BufferInfo> buffers;
  std::vector<Piece> pieces;     ///< bases come before what lies in them
  std::vector<SlotId> releases;  ///< held slots that nobody reads any more, by instruction (Instruction::first_release)
  std::vector<SlotId> held_slots;
  std::vector<SlotId> preallocated;  ///< held slots that statically bound instructions write: a run gives them memory before it starts
  /// Operand positions that point into a feed or a held slot's bytes (views of it included), so that a run patches just these: those of
  /// slot s are patch_positions[patch_begin[s]] to patch_positions[patch_begin[s + 1] - 1].
  std::vector<uint32_t> patch_positions, patch_begin;

  std::span<const uint32_t> patches(SlotId slot) const {
    const size_t s = index_of(slot);
    return std::span(patch_positions).subspan(patch_begin[s], patch_begin[s + 1] - patch_begin[s]);
  }
};

/// Finds it for instructions in their order, and notes in slots and instructions what is theirs.
/// @param operands  of all instructions
/// @param places    which values share bytes
ProgramStorage make_storage(const Graph& graph, IdVector<SlotId, Slot>& slots, IdVector<InstructionId, Instruction>& instructions,
                            std::span<const SlotId> operands, const Places& places);

}  // namespace treadle::exec
