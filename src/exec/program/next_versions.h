// Outputs that are the next version of a feed: running statistics, parameters behind an optimizer.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/program/program.h"

namespace treadle::exec {

/// The feed whose next version a slot is, by the node that makes it; kNoSlot: it is none. A caller may bind it to the feed's memory.
IdVector<SlotId, SlotId> find_next_versions(const Program& program);

}  // namespace treadle::exec
