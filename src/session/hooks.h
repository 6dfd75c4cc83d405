// The registry of actions around runs, as a run sees it.
#pragma once

#include <array>
#include <atomic>

#include "treadle/hooks.h"

namespace treadle::hooks {

/// Number of hooks at each point: a run looks no further if it is zero.
extern std::array<std::atomic<int>, 2> counts;

inline bool any(HookPoint point) { return counts[static_cast<size_t>(point)].load(std::memory_order_acquire) != 0; }
/// Calls the hooks of a point in order; what one throws ends the row.
void call(HookPoint point, const HookedRun& run);

}  // namespace treadle::hooks
