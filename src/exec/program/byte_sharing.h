// Which values share bytes: views, outputs written over inputs, and pieces of Concats and Splits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/program/pieces.h"
#include "exec/program/program.h"

namespace treadle::exec {

/// Larger programs run in order: the matrix of their order would have more than 32 MB.
inline constexpr size_t kMaxParallelInstructions = 16'384;

struct Sharing {
  IdVector<SlotId, Slot> slots;
  IdVector<SlotId, SlotId> viewed;       ///< what each is a view of, if no instruction makes it
  IdVector<InstructionId, bool> elided;  ///< it makes a view, and need not run
  Places places;
  size_t peak_bytes = 0;  ///< of the arena, for extents that may be made up
};

/// For a program whose instructions are known, and nothing else yet.
Sharing choose_sharing(const Program& program, const ProgramOptions& options);

/// The same number of bytes, whatever the extents.
bool same_size(const Type& a, const Type& b);

}  // namespace treadle::exec
