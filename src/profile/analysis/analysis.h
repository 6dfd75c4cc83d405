// Turns records into a profile: when each node ran, and how each run's time was spent.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/trace/recorder.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// Says what the names of a recording mean.
struct RecordNames {
  uint32_t run = 0;
  std::unordered_map<uint32_t, int32_t> node;  ///< maps the name of a node to its index in Profile::nodes
  /// Intervals in ticks; runs that began outside of them are ignored.
  std::vector<std::pair<uint64_t, uint64_t>> intervals = {{0, UINT64_MAX}};
};

/// Adds runs, nodes' times and calls, and timelines to a profile that already has its nodes. Skips runs with lost records.
/// @param waited_ns  may be null; receives, for nodes that began 1 microsecond or more after their operands were ready, that delay in ns
void analyze(const Recording& recording, const RecordNames& names, Profile& profile,
             std::unordered_map<const Record*, int64_t>* waited_ns = nullptr);

/// Returns the cost in ns of recording one event on this machine: two clock readings and one record.
double measure_ns_per_event();

}  // namespace treadle::profile
