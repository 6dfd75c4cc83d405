// From records to a profile: which node ran when, and where each run's time went.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "core/recorder.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// Which names mean what in a recording.
struct RecordNames {
  uint32_t run = 0;
  std::unordered_map<uint32_t, int32_t> node;  ///< to the index in Profile::nodes
};

/// Adds runs, the nodes' times and calls, and the timelines to a profile that has its nodes.
/// @param first_ticks  runs that began before are left out
void analyse(const Recording& recording, const RecordNames& names, uint64_t first_ticks, Profile& profile);

/// What recording one event costs on this machine: two readings of the clock, and the record.
double measure_ns_per_event();

}  // namespace treadle::profile
