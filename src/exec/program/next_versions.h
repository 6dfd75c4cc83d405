// Finds outputs that replace a feed in the next run: running statistics, and parameters after an optimizer's update.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/program/program.h"

namespace treadle::exec {

/// Returns, for each slot, the feed whose updated value it is, according to the operator that makes the slot; kNoSlot if there is no such
/// feed. A caller may bind such an output to the feed's memory.
IdVector<SlotId, SlotId> find_next_versions(const Program& program);

}  // namespace treadle::exec
