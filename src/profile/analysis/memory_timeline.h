// The planned contents of the arena over the steps of the main graph.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "treadle/profile.h"

namespace treadle::profile {

struct MemoryTimeline {
  std::map<MemoryClass, std::vector<size_t>> bytes;  ///< bytes alive at each step of Profile::steps; contains only activations and scratch
  size_t peak_step = 0;                              ///< the first step with the most bytes alive
  size_t peak_bytes = 0;
  std::vector<const ProfiledBuffer*> at_peak;  ///< sorted, the largest first
};

/// Computes the timeline. Empty for a profile without a plan: before the first run, and on devices.
MemoryTimeline memory_timeline(const Profile& profile);

}  // namespace treadle::profile
