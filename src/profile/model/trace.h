// The single events of a profile, which trace files are written of.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/trace/recorder.h"
#include "treadle/profile.h"

namespace treadle {

/// What a Profile keeps for trace files: every record, and which of them belong to which node.
struct ProfileTrace {
  Recording recording;
  std::unordered_map<uint32_t, int32_t> node_of;                             ///< from the name of a record to the index in Profile::nodes
  uint32_t run = 0;                                                          ///< the name of runs
  std::vector<std::vector<uint32_t>> layers;                                 ///< by node: names in the recording; empty if no node has any
  std::unordered_map<const Record*, int64_t> waited_ns;                      ///< of nodes, as analyse() gives it
  Recording::Thread load;                                                    ///< phases of loading; empty if that was long ago
  std::vector<std::pair<uint64_t, uint64_t>> intervals = {{0, UINT64_MAX}};  ///< ticks between which the profile was on

  bool is_on(uint64_t ticks) const;
};

namespace profile {

/// Whether a tick is in one of the intervals: from the first tick on, up to the second.
bool is_within(const std::vector<std::pair<uint64_t, uint64_t>>& intervals, uint64_t ticks);

/// The text with whatever is not UTF-8 replaced: names come from models, and no viewer would read the file.
std::string valid_utf8(const std::string& text);

}  // namespace profile
}  // namespace treadle
