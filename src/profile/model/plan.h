// Everything in a profile except its records: nodes, plans, names. With it, another process can read the records.
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

/// A stream of a device. It has a separate row in traces.
struct DeviceRow {
  std::string name;         ///< name such as "gpu:0 compute 3"
  std::string device;       ///< name such as "gpu:0"
  bool tells_times = true;  ///< false: times are those at which the host enqueued work
};

/// The nodes that run on devices other than the host.
struct DeviceRows {
  std::vector<DeviceRow> rows;
  std::vector<int32_t> of_node;  ///< row of each node; -1 or no element: the node runs on the host

  /// Returns the row of a node; null if it runs on the host.
  const DeviceRow* of(int32_t node) const {
    const auto i = static_cast<size_t>(node);
    return i < of_node.size() && of_node[i] >= 0 ? &rows[static_cast<size_t>(of_node[i])] : nullptr;
  }
};

struct ProfilePlan {
  Profile profile;                                ///< nodes, steps, buffers and planned memory, without runs
  std::unordered_map<uint32_t, int32_t> node_of;  ///< maps the name of a record to its node
  DeviceRows device_rows;
  uint32_t run = 0, initialization = 0;  ///< names of records of runs and of initialization
  uint64_t account = 0;                  ///< see RecordFilter::account
  bool memory = false, kernel_phases = false, python_calls = false;
  std::vector<LoadPhase> load;
  MemoryStatistics memory_before;   ///< memory in use when the profile began
  std::vector<MemoryHolding> held;  ///< named parts of that memory
  double ns_per_event = 0;

  /// Returns true if a record of this name may belong to the profile. Names that the program defines always may.
  bool knows(uint32_t name) const {
    return !Recorder::is_reserved(name) || name == run || name == initialization || node_of.contains(name);
  }
};

std::string plan_to_json(const ProfilePlan& plan);
/// Parses a plan. @throws Error(invalid_argument) for text that is not a plan
ProfilePlan plan_from_json(std::string_view json);

}  // namespace treadle::profile
