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

struct ProfilePlan {
  Profile profile;                                ///< nodes, steps, buffers and planned memory, without runs
  std::unordered_map<uint32_t, int32_t> node_of;  ///< name of a record -> node
  uint32_t run = 0, initialization = 0;           ///< names of records
  uint64_t account = 0;                           ///< as RecordFilter::account
  bool memory = false, kernel_phases = false, python_calls = false;
  std::vector<LoadPhase> load;
  MemoryStatistics memory_before;   ///< when the profile began
  std::vector<MemoryHolding> held;  ///< named parts of that memory
  double ns_per_event = 0;

  /// True if a record of this name may belong to the profile. Names that the program defines always may.
  bool knows(uint32_t name) const {
    return !Recorder::is_reserved(name) || name == run || name == initialization || node_of.contains(name);
  }
};

std::string plan_to_json(const ProfilePlan& plan);
/// @throws Error(invalid_argument) for text that is not a plan
ProfilePlan plan_from_json(std::string_view json);

}  // namespace treadle::profile
