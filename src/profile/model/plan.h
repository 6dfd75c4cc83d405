// What a profile is made of beside its records: nodes, plans, names. With it, records can be read in another process.
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
  Profile profile;                                ///< nodes, steps, buffers, and what is known of memory; nothing of the runs
  std::unordered_map<uint32_t, int32_t> node_of;  ///< from the names of records to nodes
  uint32_t run = 0, initialization = 0;           ///< names of records
  uint64_t account = 0;                           ///< as RecordFilter::account
  bool memory = false, kernel_phases = false, python_calls = false;
  std::vector<LoadPhase> load;
  MemoryStatistics memory_before;   ///< when the profile began
  std::vector<MemoryHolding> held;  ///< what was there before, by name
  double ns_per_event = 0;

  /// Whether a record of this name may be of the profile: what the program names itself may always be.
  bool knows(uint32_t name) const {
    return !Recorder::is_reserved(name) || name == run || name == initialization || node_of.contains(name);
  }
};

std::string plan_to_json(const ProfilePlan& plan);
/// @throws Error(invalid_argument) for text that is no plan
ProfilePlan plan_from_json(std::string_view json);

}  // namespace treadle::profile
