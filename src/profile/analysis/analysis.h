// Turns records into a profile: when each node ran, and how each run's time was spent.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/trace/recorder.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// Says which recorded names (numbers) stand for runs and nodes, and which runs count.
struct RecordNames {
  uint32_t run = 0;
  std::unordered_map<uint32_t, int32_t> node;  ///< maps a recorded name to an index in Profile::nodes
  /// Intervals of time, in ticks. Runs that began outside of them are ignored.
  std::vector<std::pair<uint64_t, uint64_t>> intervals = {{0, UINT64_MAX}};
};

/// Adds runs, the times and calls of nodes, and timelines to a profile that already has its nodes. Skips runs with lost records.
/// @param waited_ns  if not null, receives the delay in ns of each node that began 1 microsecond or more after its operands were ready
void analyze(const Recording& recording, const RecordNames& names, Profile& profile,
             std::unordered_map<const Record*, int64_t>* waited_ns = nullptr);

/// Returns the cost in ns of recording one event on this machine: two clock readings and one record.
double measure_ns_per_event();

}  // namespace treadle::profile
