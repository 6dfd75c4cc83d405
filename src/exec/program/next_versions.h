// Outputs that are the next version of a feed: running statistics, parameters behind an optimizer.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/program/program.h"

namespace treadle::exec {

/// Per slot: the feed whose next version it is, by the node that makes it; -1: it is none. A caller may bind it to the feed's memory.
std::vector<int32_t> find_next_versions(const Program& program);

}  // namespace treadle::exec
