// Whether somebody has proven a plan.
#pragma once

#include <atomic>

namespace treadle::exec {

/// Stands in a plan that runs share. A copy of a plan is unproven, as it may become another one. Thread-safe.
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
