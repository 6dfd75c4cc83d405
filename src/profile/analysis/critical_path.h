// The chain of nodes that a run cannot be shorter than, however many of them run at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "treadle/profile.h"

namespace treadle::profile {

struct CriticalPath {
  double ms = 0, all_ms = 0;     ///< of the path, and of all nodes
  std::vector<int32_t> nodes;    ///< indices into Profile::nodes, in order
  std::vector<double> slack_ms;  ///< per node: by how much it might take longer before the path does; -1 outside of the main graph
};

/// Of each step of the main graph (Profile::steps), the steps that it waits for, by what it reads. That buffers share bytes does not count:
/// a run of nodes at once has another plan.
std::vector<std::vector<size_t>> predecessors_of(const Profile& profile);

/// Of the nodes of the main graph (Profile::steps), by predecessors_of().
/// @param node_ms  per node, those of its bodies included
CriticalPath critical_path(const Profile& profile, std::span<const double> node_ms);

}  // namespace treadle::profile
