// Computes what the arenas of the runs in progress contain: the plan's buffers that are alive at the nodes that have begun.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "profile/model/trace.h"
#include "treadle/profile.h"

namespace treadle::profile {

using SignedClassBytes = std::array<int64_t, kNumMemoryClasses>;

/// Follows the records of nodes and runs in the order of time.
class ArenaUse {
 public:
  /// Both arguments must outlive this object. Without a plan, arenas count as empty.
  ArenaUse(const Profile& profile, const ProfileTrace& trace);

  struct Moment {
    uint64_t ticks;
    const Record* record;  ///< marks the begin of a node, or the end of a run
  };
  /// Returns the moments sorted by time.
  const std::vector<Moment>& moments() const { return moments_; }
  void take(const Record& record);

  /// Maps the number of each run in progress to its last step that has begun.
  const std::map<uint16_t, int32_t>& steps() const { return steps_; }
  /// Returns the bytes in use per class, over all runs in progress.
  const SignedClassBytes& bytes() const { return bytes_; }
  int64_t total_bytes() const { return total_bytes_; }
  /// Returns what the arena of one run contains at a step: names of values, and for scratch memory names of nodes.
  std::vector<MemoryHolding> holdings_at(int32_t step) const;

 private:
  void add(int32_t step, int64_t sign);

  const Profile& profile_;
  const ProfileTrace& trace_;
  std::vector<int32_t> step_of_;         // step of each node; -1: the node is not in the main graph
  std::vector<SignedClassBytes> alive_;  // bytes alive at each step
  std::vector<Moment> moments_;
  std::map<uint16_t, int32_t> steps_;
  SignedClassBytes bytes_{};
  int64_t total_bytes_ = 0;
};

}  // namespace treadle::profile
