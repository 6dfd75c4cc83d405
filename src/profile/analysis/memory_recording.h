// Computes the memory that was allocated over time, from the records of blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "profile/model/trace.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// The bytes of a memory class from a moment on, until the next counter of this class.
struct MemoryCounter {
  uint64_t ticks = 0;
  MemoryClass memory_class = MemoryClass::other;
  size_t bytes = 0;
};

struct RecordedMemory {
  MeasuredMemory memory;
  std::vector<MemoryCounter> counters;  ///< the changes of each class along the timeline of `memory`
};

/// @param profile  must have its nodes and plan, which determine the contents of arenas at each node
/// @param before   bytes of each class when the profile began
/// @param holders  named parts of that memory, such as weights
RecordedMemory measure_memory(const ProfileTrace& trace, const Profile& profile, const MemoryStatistics& before,
                              std::vector<MemoryHolding> holders);

/// Adds the counters to the recording as a separate row, for trace viewers.
void add_memory_counters(Recording& recording, const std::vector<MemoryCounter>& counters);

}  // namespace treadle::profile
