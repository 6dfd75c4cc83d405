// The runners (compiled graphs) of a trainer, one for each purpose.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "train/run/runner.h"

namespace treadle::train {

/// Runners for steps and updates are made with the trainer, the others at their first use. Several threads may use the runners at once.
class Runners {
 public:
  enum Purpose : size_t { step, update, gradients, predict, loss, evaluate, kNumPurposes };

  bool has(Purpose purpose) const { return runners_[purpose] != nullptr; }
  /// Returns the runner for a purpose. @pre it has been made
  const Runner& operator[](Purpose purpose) const { return *runners_[purpose]; }
  /// Returns the runner for a purpose. If there is none yet, make() makes it; other threads that call get() wait meanwhile.
  template <typename Make>
  const Runner& get(Purpose purpose, Make&& make) {
    std::lock_guard alone(making_mutex_);
    if (!runners_[purpose]) {
      std::unique_ptr<Runner> made = make();
      std::lock_guard lock(mutex_);
      runners_[purpose] = std::move(made);
    }
    return *runners_[purpose];
  }

  /// Returns the executables of all runners that have been made, beginning with that for steps.
  Runtime::Executables executables() const {
    Runtime::Executables all;
    for_each([&](const Runner& runner) { runner.add_to(all); });
    return all;
  }
  /// Frees arenas that no run uses. Thread-safe, because threads that need memory call this.
  void trim() const {
    for_each([](const Runner& runner) { runner.trim(); });
  }
  void clear() { runners_ = {}; }

 private:
  template <typename Visit>
  void for_each(Visit&& visit) const {
    std::lock_guard lock(mutex_);
    for (const std::unique_ptr<Runner>& runner : runners_)
      if (runner) visit(*runner);
  }

  std::array<std::unique_ptr<Runner>, kNumPurposes> runners_;
  mutable std::mutex mutex_;  // guards the pointers for threads that only read them
  std::mutex making_mutex_;
};

}  // namespace treadle::train
