// Which planned buffers are alive when: the arena over the steps of the main graph.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "treadle/profile.h"

namespace treadle::profile {

struct MemoryTimeline {
  std::map<MemoryClass, std::vector<size_t>> bytes;  ///< alive, per step of Profile::steps; activations and scratch, and what else there is
  size_t peak_step = 0;                              ///< the first at which most bytes are alive
  size_t peak_bytes = 0;
  std::vector<const ProfiledBuffer*> at_peak;  ///< the largest first
};

/// Empty where the profile has no plan: before the first run, and on devices.
MemoryTimeline memory_timeline(const Profile& profile);

}  // namespace treadle::profile
