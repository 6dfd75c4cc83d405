// Computes what the arenas of the current runs contain: the planned buffers that are alive at the latest node that has begun.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "profile/model/trace.h"
#include "treadle/profile.h"

namespace treadle::profile {

using SignedClassBytes = std::array<int64_t, kNumMemoryClasses>;

/// Replays the records of nodes and runs in order of time, and tracks the contents of the runs' arenas.
class ArenaUse {
 public:
  /// Both arguments must outlive this object. Without a plan, arenas count as empty.
  ArenaUse(const Profile& profile, const ProfileTrace& trace);

  struct Moment {
    uint64_t ticks;
    const Record* record;  ///< the node that begins or the run that ends at this moment
  };
  /// Returns the moments at which arenas change, sorted by time. Each must be passed to take() in this order.
  const std::vector<Moment>& moments() const { return moments_; }
  void take(const Record& record);

  /// Maps the number of each current run to the latest of its steps that has begun.
  const std::map<uint16_t, int32_t>& steps() const { return steps_; }
  /// Returns the bytes in use within arenas, by memory class, summed over all current runs.
  const SignedClassBytes& bytes() const { return bytes_; }
  int64_t total_bytes() const { return total_bytes_; }
  /// Returns the buffers in the arena of a run at a step. Scratch memory has the name of its node, other buffers that of a value.
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
