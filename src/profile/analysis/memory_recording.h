// From blocks' records to what was really allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "profile/model/trace.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// Bytes of a class from a moment on.
struct MemoryCounter {
  uint64_t ticks = 0;
  MemoryClass memory_class = MemoryClass::other;
  size_t bytes = 0;
};

struct RecordedMemory {
  MeasuredMemory memory;
  std::vector<MemoryCounter> counters;  ///< as the timeline of `memory`, where a class changes
};

/// @param profile  has its nodes and its plan: what lies in arenas at which node
/// @param before   bytes of each class when the profile began
/// @param holders  of what was there before: weights by name
RecordedMemory measure_memory(const ProfileTrace& trace, const Profile& profile, const MemoryStatistics& before,
                              std::vector<MemoryHolding> holders);

/// Puts them into the recording, for viewers: a row of its own.
void add_memory_counters(Recording& recording, const std::vector<MemoryCounter>& counters);

}  // namespace treadle::profile
