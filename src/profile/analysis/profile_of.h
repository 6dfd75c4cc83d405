// Makes a profile of a plan and the records of its runs.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/trace/recorder.h"
#include "profile/model/plan.h"

namespace treadle::profile {

/// The filter that selects a plan's records. Its texts are the names of runs, of initialization, and of the nodes in the order of `nodes`.
struct PlanFilter {
  RecordFilter filter;
  std::unordered_map<uint32_t, int32_t> node_of;  ///< maps the index of a text to the index of the node
};
PlanFilter filter_of(const ProfilePlan& plan, uint64_t from);

/// Makes the profile of these records.
/// @param node_of    PlanFilter::node_of of the filter that selected them
/// @param intervals  intervals in ticks in which the profile was on
Profile profile_of(ProfilePlan plan, Recording recording, std::unordered_map<uint32_t, int32_t> node_of,
                   std::vector<std::pair<uint64_t, uint64_t>> intervals);

}  // namespace treadle::profile
