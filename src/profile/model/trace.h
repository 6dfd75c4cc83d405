// The recorded events of a profile, from which trace files are written.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/trace/recorder.h"
#include "profile/model/plan.h"
#include "treadle/profile.h"

namespace treadle {

/// The data that a Profile keeps for writing trace files: all records, and a map from records to nodes.
struct ProfileTrace {
  Recording recording;
  std::unordered_map<uint32_t, int32_t> node_of;  ///< maps the name of a record to an index in Profile::nodes
  uint32_t run = 0;                               ///< name of the records of runs
  std::vector<std::vector<uint32_t>> layers;      ///< numbers of the names of each node's layers; empty if no node has layers
  profile::DeviceRows device_rows;
  std::unordered_map<const Record*, int64_t> waited_ns;  ///< how long nodes waited, as analyze() returns it
  Recording::Thread load;                                ///< the phases of loading the model; empty if that was long before
  std::vector<std::pair<uint64_t, uint64_t>> intervals = {{0, UINT64_MAX}};  ///< the times, in ticks, when the profile was on

  bool is_on(uint64_t ticks) const;
};

namespace profile {

/// Returns true if a time is in one of the intervals. Intervals include their start but not their end.
bool is_within(const std::vector<std::pair<uint64_t, uint64_t>>& intervals, uint64_t ticks);

/// Replaces bytes that are not UTF-8. Texts come from models, and viewers reject files with invalid UTF-8.
std::string valid_utf8(const std::string& text);

}  // namespace profile
}  // namespace treadle
