// Computes how much memory was allocated over time, from the records of allocated and freed blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "profile/model/trace.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// The bytes of a memory class from one moment until the next counter of this class.
struct MemoryCounter {
  uint64_t ticks = 0;
  MemoryClass memory_class = MemoryClass::other;
  size_t bytes = 0;
};

struct RecordedMemory {
  MeasuredMemory memory;
  std::vector<MemoryCounter> counters;  ///< the points of memory.timeline at which a class changes
};

/// @param profile  must have its nodes and plan, which determine the contents of arenas at each node
/// @param before   memory of each class that was in use when the profile began
/// @param holders  the named parts of this memory, such as weights
RecordedMemory measure_memory(const ProfileTrace& trace, const Profile& profile, const MemoryStatistics& before,
                              std::vector<MemoryHolding> holders);

/// Adds the counters to the recording as a row of their own, which trace viewers draw as graphs.
void add_memory_counters(Recording& recording, const std::vector<MemoryCounter>& counters);

}  // namespace treadle::profile
