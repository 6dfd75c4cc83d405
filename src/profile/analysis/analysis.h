// From records to a profile: which node ran when, and where each run's time went.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/trace/recorder.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// Which names mean what in a recording.
struct RecordNames {
  uint32_t run = 0;
  std::unordered_map<uint32_t, int32_t> node;                                ///< to the index in Profile::nodes
  std::vector<std::pair<uint64_t, uint64_t>> intervals = {{0, UINT64_MAX}};  ///< ticks: runs that began outside of them are left out
};

/// Adds runs, the nodes' times and calls, and the timelines to a profile that has its nodes.
/// Runs some of whose records were dropped are left out.
/// @param waited_ns  may be null; gets the records of nodes that began a microsecond or more after all that they read was there
void analyse(const Recording& recording, const RecordNames& names, Profile& profile,
             std::unordered_map<const Record*, int64_t>* waited_ns = nullptr);

/// What recording one event costs on this machine: two readings of the clock, and the record.
double measure_ns_per_event();

}  // namespace treadle::profile
