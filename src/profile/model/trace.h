// The events of a profile, for trace files.
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

/// The data that a Profile keeps for trace files: all records, and the node of each record.
struct ProfileTrace {
  Recording recording;
  std::unordered_map<uint32_t, int32_t> node_of;  ///< maps the name of a record to an index in Profile::nodes
  uint32_t run = 0;                               ///< name of records of runs
  std::vector<std::vector<uint32_t>> layers;      ///< for each node: the numbers of its layers' names; empty if no node has layers
  profile::DeviceRows device_rows;
  std::unordered_map<const Record*, int64_t> waited_ns;  ///< times that nodes waited, as analyze() returns them
  Recording::Thread load;                                ///< the phases of loading; empty if the model was loaded long before
  std::vector<std::pair<uint64_t, uint64_t>> intervals = {{0, UINT64_MAX}};  ///< intervals in ticks in which the profile was on

  bool is_on(uint64_t ticks) const;
};

namespace profile {

/// True if a tick is in one of the intervals, which include their start but not their end.
bool is_within(const std::vector<std::pair<uint64_t, uint64_t>>& intervals, uint64_t ticks);

/// Replaces bytes that are not UTF-8. Names come from models, and viewers would reject the file.
std::string valid_utf8(const std::string& text);

}  // namespace profile
}  // namespace treadle
