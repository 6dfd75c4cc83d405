// The compute engine of a simulated device, if its streams share one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>

#include "core/threads/thread_pool.h"

namespace treadle {

/// Runs one piece of work at a time, in order of arrival. Yielding work lets all other work run first: it begins when there has been no
/// other work for a moment, and leaves the engine between two chunks of its loops when other work arrives, to continue later. This models a
/// device that preempts kernels (REEF, OSDI 2022) or runs them in slices (Tally, ASPLOS 2025).
class SimEngine {
 public:
  /// While this object exists, the calling thread computes on the engine.
  class Occupation final : LoopBreak {
   public:
    /// @param gives_way  empty: the work does not yield; otherwise a function that is called now and then during waits, and may throw
    Occupation(SimEngine& engine, const std::function<void()>& gives_way);
    ~Occupation();
    Occupation(const Occupation&) = delete;
    Occupation& operator=(const Occupation&) = delete;

    /// Keeps the engine until the work has taken `pace` times the shortest time measured for the same work. If the work yields, it may
    /// leave the engine meanwhile and continue later.
    void keep(double pace, std::chrono::nanoseconds& shortest);

   private:
    using Clock = std::chrono::steady_clock;
    bool wanted() const noexcept override { return engine_.waiting_.load(std::memory_order_relaxed) > 0; }
    void take() override;

    SimEngine& engine_;
    const std::function<void()>& gives_way_;
    bool inside_ = false;
    Clock::time_point start_;  // start of the work, later by the time that it has been away from the engine
    std::optional<LoopBreakScope> breaks_;
  };

  /// Returns the total time that non-yielding work has waited for the engine.
  uint64_t waited_ns() const { return waited_ns_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  void enter();
  void enter_last(const std::function<void()>& check);
  void leave(bool gave_way);
  /// Keeps the engine until the given time. Returns earlier if non-yielding work takes the engine, with the time when it did.
  std::optional<Clock::time_point> stay(Clock::time_point until);

  std::mutex mutex_;
  std::atomic<bool> busy_{false};
  std::atomic<int> waiting_{0};  // number of waiting pieces of non-yielding work
  std::atomic<uint64_t> waited_ns_{0};
  uint64_t tickets_ = 0, next_ = 0;
  std::condition_variable changed_;
  Clock::time_point ended_;      // time at which the last non-yielding work ended
  std::list<const void*> last_;  // yielding work that waits, in order of arrival
  std::condition_variable last_changed_;
  // Set by non-yielding work when it takes the engine from yielding work that has finished its computation.
  std::optional<Clock::time_point>* stays_ = nullptr;
};

}  // namespace treadle
