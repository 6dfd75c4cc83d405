// Plans a program's storage: buffers in the arena, held slots and when to free them, and the operand pointers that each run sets.
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

/// A buffer in the arena: a range of bytes that is in use from one instruction to a later one.
struct BufferInfo {
  SlotId slot;                ///< the root slot in the buffer (views share its bytes); kNoSlot: scratch memory of an instruction
  InstructionId instruction;  ///< for scratch memory: the instruction that uses it
  InstructionId first, last;  ///< the first and the last instruction that use the buffer
};

/// A slot whose bytes lie within the bytes of another slot. Its offset from `base` is the total size of the preceding operands or, if rows
/// are interleaved, the size of one row of each of them.
struct Piece {
  SlotId slot, base;
  uint32_t first_preceding, num_preceding;  ///< a range in Program::operands()
};

struct ProgramStorage {
  IdVector<BufferId, BufferInfo> buffers;
  std::vector<Piece> pieces;     ///< a piece comes after its base
  std::vector<SlotId> releases;  ///< held slots to free, grouped by instruction (Instruction::first_release)
  std::vector<SlotId> held_slots;
  std::vector<SlotId> preallocated;  ///< the slots that Program::preallocated() returns
  /// Positions of operands whose pointers lead into the bytes of a feed or held slot (Program::patches). The positions for slot s are at
  /// indices patch_begin[s] to patch_begin[s + 1] - 1.
  std::vector<uint32_t> patch_positions, patch_begin;

  std::span<const uint32_t> patches(SlotId slot) const {
    const size_t s = index_of(slot);
    return std::span(patch_positions).subspan(patch_begin[s], patch_begin[s + 1] - patch_begin[s]);
  }
};

/// Computes the storage for instructions in the given order. Sets the members of slots and instructions that refer to the storage.
/// @param operands  operands of all instructions
/// @param places    which slots lie within the bytes of others
ProgramStorage make_storage(const Graph& graph, IdVector<SlotId, Slot>& slots, IdVector<InstructionId, Instruction>& instructions,
                            std::span<const SlotId> operands, const Places& places);

}  // namespace treadle::exec
