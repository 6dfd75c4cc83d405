// From blocks' records to what was really allocated.
#pragma once

#include <vector>

#include "profile/trace_rows.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// @param profile  has its nodes and its plan: what lies in arenas at which node
/// @param before   bytes of each class when the profile began
/// @param holders  of what was there before: weights by name
MeasuredMemory measure_memory(const ProfileTrace& trace, const Profile& profile, const MemoryStatistics& before,
                              std::vector<MemoryHolding> holders);

/// Puts a counter of the bytes of each class into the recording, for viewers.
void add_memory_counters(Recording& recording, const MemoryStatistics& before);

}  // namespace treadle::profile
