// Decides which values share bytes: views, outputs that overwrite inputs, and pieces of Concats and Splits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exec/program/pieces.h"
#include "exec/program/program.h"

namespace treadle::exec {

/// Larger programs run sequentially, because their dependencies as a bit matrix would take more than 32 MB.
inline constexpr size_t kMaxParallelInstructions = 16'384;

struct Sharing {
  IdVector<SlotId, Slot> slots;          ///< the program's slots, with locations and roots (the slots whose bytes they share)
  IdVector<SlotId, SlotId> viewed;       ///< the slot that each slot is a view of; kNoSlot: an instruction makes it
  IdVector<InstructionId, bool> elided;  ///< true: the instruction only makes a view and need not run
  Places places;
  size_t peak_bytes = 0;  ///< peak size of the arena, estimated with the same number for every unknown extent
};

/// @pre the program's instructions and slots are complete. Its other members are not used.
Sharing choose_sharing(const Program& program, const ProgramOptions& options);

/// Returns true if values of both types have the same number of bytes for all extents.
bool same_size(const Type& a, const Type& b);

}  // namespace treadle::exec
