// Runs that are done one after the other.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "exec/run/run_control.h"

namespace treadle::exec {

/// Runs that are done one after the other. One that waits for its turn ends as any other when it is cancelled or passes its deadline.
class RunTurns {
 public:
  class Turn {
   public:
    /// @throws Error(cancelled or timed_out)
    Turn(RunTurns& turns, const RunControl& control) : turns_(turns) {
      std::unique_lock lock(turns.mutex_);
      while (!turns.changed_.wait_for(lock, std::chrono::milliseconds(1), [&] { return !turns.taken_; })) control.check();
      turns.taken_ = true;
    }
    ~Turn() { turns_.give_back(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    RunTurns& turns_;
  };

  /// Calls fn() unless a run has its turn. @return whether it did
  template <typename Fn>
  bool if_idle(Fn&& fn) {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(taken_, true)) return false;
    }
    try {
      fn();
    } catch (...) {
      give_back();
      throw;
    }
    give_back();
    return true;
  }

 private:
  void give_back() {
    std::lock_guard lock(mutex_);
    taken_ = false;
    changed_.notify_one();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool taken_ = false;
};

}  // namespace treadle::exec
