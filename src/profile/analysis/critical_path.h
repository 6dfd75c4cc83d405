// The critical path: the longest chain of nodes that depend on each other. A run cannot be faster, however many nodes run concurrently.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "treadle/profile.h"

namespace treadle::profile {

struct CriticalPath {
  double ms = 0, all_ms = 0;     ///< duration of the path, and of all nodes together
  std::vector<int32_t> nodes;    ///< indices into Profile::nodes, in order
  std::vector<double> slack_ms;  ///< how long each node may be delayed without lengthening the path; -1 for nodes in bodies
};

/// Returns, for each step of the main graph (Profile::steps), the steps whose results it reads. Steps that only reuse a buffer do not count
/// as dependent, because a concurrent execution would place buffers differently.
std::vector<std::vector<size_t>> predecessors_of(const Profile& profile);

/// Computes the critical path of the main graph. @param node_ms  time of each node, including the nodes in its bodies (subgraphs)
CriticalPath critical_path(const Profile& profile, std::span<const double> node_ms);

}  // namespace treadle::profile
