// Decides which values share bytes: views, outputs written over inputs, and pieces of Concats and Splits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exec/program/pieces.h"
#include "exec/program/program.h"

namespace treadle::exec {

/// Larger programs run sequentially, because the bit matrix of their order would exceed 32 MB.
inline constexpr size_t kMaxParallelInstructions = 16'384;

struct Sharing {
  IdVector<SlotId, Slot> slots;          ///< the program's, with their roots and locations
  IdVector<SlotId, SlotId> viewed;       ///< the slot that each slot is a view of; kNoSlot: an instruction makes it
  IdVector<InstructionId, bool> elided;  ///< the instruction makes a view, and need not run
  Places places;
  size_t peak_bytes = 0;  ///< peak of the arena, estimated with the same value for all unknown extents
};

/// @pre the program's instructions and slots are known; nothing else of it is asked for.
Sharing choose_sharing(const Program& program, const ProgramOptions& options);

/// True if values of both types have the same number of bytes, whatever the extents.
bool same_size(const Type& a, const Type& b);

}  // namespace treadle::exec
