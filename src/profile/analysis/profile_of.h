// Makes a profile from a plan (the nodes and their names) and the records of its runs.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/trace/recorder.h"
#include "profile/model/plan.h"

namespace treadle::profile {

/// The filter that selects the records that belong to a plan. Its texts are names: of runs, of initialization, and then of the plan's
/// nodes in order.
struct PlanFilter {
  RecordFilter filter;
  std::unordered_map<uint32_t, int32_t> node_of;  ///< maps the index of a text to that of its node
};
PlanFilter filter_of(const ProfilePlan& plan, uint64_t from);

/// Makes a profile from a recording.
/// @param node_of    PlanFilter::node_of of the filter that selected the recording's records
/// @param intervals  the intervals, in ticks, in which the profile was on
Profile profile_of(ProfilePlan plan, Recording recording, std::unordered_map<uint32_t, int32_t> node_of,
                   std::vector<std::pair<uint64_t, uint64_t>> intervals);

}  // namespace treadle::profile
