// Everything in a profile except its records: nodes, memory plan, names. Another process needs it to interpret the records.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/trace/load_phases.h"
#include "core/trace/record_filter.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// A stream (queue of work) of a device. Each stream has its own row in traces.
struct DeviceRow {
  std::string name;         ///< name of the stream, such as "gpu:0 compute 3"
  std::string device;       ///< name of the device, such as "gpu:0"
  bool tells_times = true;  ///< false: recorded times are when the host enqueued the work
};

/// Says on which stream of a device each node runs.
struct DeviceRows {
  std::vector<DeviceRow> rows;
  std::vector<int32_t> of_node;  ///< for each node, an index in `rows`; -1 or no element: the node runs on the host

  /// Returns the stream that runs a node; null if the node runs on the host.
  const DeviceRow* of(int32_t node) const {
    const auto i = static_cast<size_t>(node);
    return i < of_node.size() && of_node[i] >= 0 ? &rows[static_cast<size_t>(of_node[i])] : nullptr;
  }
};

struct ProfilePlan {
  Profile profile;                                ///< nodes, steps, buffers and planned memory, without runs
  std::unordered_map<uint32_t, int32_t> node_of;  ///< maps the name of a record to a node's index
  DeviceRows device_rows;
  uint32_t run = 0, initialization = 0;  ///< names of the records of runs and of initialization
  uint64_t account = 0;                  ///< see RecordFilter::account
  bool memory = false, kernel_phases = false, python_calls = false;
  std::vector<LoadPhase> load;
  MemoryStatistics memory_before;   ///< memory in use when the profile began
  std::vector<MemoryHolding> held;  ///< the named parts of this memory
  double ns_per_event = 0;

  /// Returns true if records of this name may belong to the profile. Those with a name that the program itself defined always may.
  bool knows(uint32_t name) const {
    return !Recorder::is_reserved(name) || name == run || name == initialization || node_of.contains(name);
  }
};

std::string plan_to_json(const ProfilePlan& plan);
/// Parses a plan. @throws Error(invalid_argument) for text that is not a plan
ProfilePlan plan_from_json(std::string_view json);

}  // namespace treadle::profile
