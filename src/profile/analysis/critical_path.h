// The critical path: the longest chain of dependent nodes, which bounds a run's time however many nodes run concurrently.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "treadle/profile.h"

namespace treadle::profile {

struct CriticalPath {
  double ms = 0, all_ms = 0;     ///< duration of the path; sum over all nodes
  std::vector<int32_t> nodes;    ///< indices into Profile::nodes, in order
  std::vector<double> slack_ms;  ///< for each node: the delay by which the path would not get longer; -1 outside of the main graph
};

/// Returns, for each step of the main graph (Profile::steps), the steps whose results it reads. Reuse of buffers adds no dependency,
/// because concurrent runs have another plan.
std::vector<std::vector<size_t>> predecessors_of(const Profile& profile);

/// Computes the critical path of the main graph, by predecessors_of(). @param node_ms  time of each node, including its bodies
CriticalPath critical_path(const Profile& profile, std::span<const double> node_ms);

}  // namespace treadle::profile
