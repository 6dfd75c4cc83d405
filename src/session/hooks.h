// The registered hooks: functions that are called before and after every run.
#pragma once

#include <array>
#include <atomic>

#include "treadle/hooks.h"

namespace treadle::hooks {

/// Number of hooks registered for each point; a run skips the lookup if it is zero.
extern std::array<std::atomic<int>, 2> counts;

inline bool any(HookPoint point) { return counts[static_cast<size_t>(point)].load(std::memory_order_acquire) != 0; }
/// Calls the hooks of a point by ascending group, and within a group in order of registration. If one throws, the others are not called.
void call(HookPoint point, const HookedRun& run);

}  // namespace treadle::hooks
