// A flag that tells whether a plan has been verified.
#pragma once

#include <atomic>

namespace treadle::exec {

/// Runs that share a plan share its flag, so later runs need not verify the plan again. A copy of the flag begins unset, because the copied
/// plan may be changed. Thread-safe.
class Proof {
 public:
  Proof() = default;
  Proof(const Proof& /*other*/) {}
  Proof& operator=(const Proof& /*other*/) {
    reset();
    return *this;
  }
  bool is_there() const { return is_there_.load(std::memory_order_acquire); }
  void note() const { is_there_.store(true, std::memory_order_release); }
  void reset() { is_there_.store(false, std::memory_order_relaxed); }

 private:
  mutable std::atomic<bool> is_there_{false};
};

}  // namespace treadle::exec
