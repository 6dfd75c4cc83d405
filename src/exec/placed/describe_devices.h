// Describes the memory that a run uses on its devices, for out-of-memory errors.
#pragma once

#include <string>

#include "exec/placed/placed_memory.h"
#include "exec/placed/placed_values.h"
#include "exec/run/run_control.h"
#include "exec/run/run_state.h"

namespace treadle::exec {

/// Lists the memory account, the arena, values and weights of each device, the largest values, and what would need less memory.
/// Call it when the run has no work in progress on any device.
/// @param failed  the instruction that ran out of memory; kNoInstruction if the run had not begun.
/// @return lines of text
std::string describe_devices(const PlacedMemory& memory, const PlacedValues& values, const RunState& state, const RunControl& control,
                             InstructionId failed);

}  // namespace treadle::exec
