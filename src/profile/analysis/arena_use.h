// What lies in the arenas of runs that are under way: the buffers of the plan that are alive at the nodes that have begun.
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
  /// Holds on to both. A profile without a plan has nothing in its arenas.
  ArenaUse(const Profile& profile, const ProfileTrace& trace);

  struct Moment {
    uint64_t ticks;
    const Record* record;  ///< of a node that begins, or of a run that ends
  };
  /// By time.
  const std::vector<Moment>& moments() const { return moments_; }
  void take(const Record& record);

  /// The last step that has begun, of each run under way by its number.
  const std::map<uint16_t, int32_t>& steps() const { return steps_; }
  /// By class, of all runs under way.
  const SignedClassBytes& bytes() const { return bytes_; }
  int64_t total_bytes() const { return total_bytes_; }
  /// Of the arena of one run at a step: names of values, and of nodes for scratch.
  std::vector<MemoryHolding> holdings_at(int32_t step) const;

 private:
  void add(int32_t step, int64_t sign);

  const Profile& profile_;
  const ProfileTrace& trace_;
  std::vector<int32_t> step_of_;         // by node; -1: not of the main graph
  std::vector<SignedClassBytes> alive_;  // by step
  std::vector<Moment> moments_;
  std::map<uint16_t, int32_t> steps_;
  SignedClassBytes bytes_{};
  int64_t total_bytes_ = 0;
};

}  // namespace treadle::profile
