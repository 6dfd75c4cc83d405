// The planned contents of the arena over the steps of the main graph.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "treadle/profile.h"

namespace treadle::profile {

struct MemoryTimeline {
  std::map<MemoryClass, std::vector<size_t>> bytes;  ///< bytes alive at each step of Profile::steps, for the classes that arenas have
  size_t peak_step = 0;                              ///< the first step with the most bytes alive
  size_t peak_bytes = 0;
  std::vector<const ProfiledBuffer*> at_peak;  ///< buffers alive at this step, the largest first
};

/// Computes the timeline. It is empty if the profile has no memory plan, as before the first run, or for runs on devices.
MemoryTimeline memory_timeline(const Profile& profile);

}  // namespace treadle::profile
