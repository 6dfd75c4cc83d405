// The compute engine of a simulated device whose streams share one engine.
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

/// Runs one piece of work at a time, in order of arrival. Yielding work (of low priority) begins only when there has been no other work for
/// a moment. When other work arrives, yielding work leaves the engine between two chunks of a loop, and continues later. This models a
/// device that preempts kernels (REEF, OSDI 2022) or runs them in slices (Tally, ASPLOS 2025).
class SimEngine {
 public:
  /// While this object exists, the thread that made it computes on the engine.
  class Occupation final : LoopBreak {
   public:
    /// @param gives_way  empty: the work does not yield. Otherwise, the work yields, and this function is called now and then while it
    ///   waits; it may throw to end the wait
    Occupation(SimEngine& engine, const std::function<void()>& gives_way);
    ~Occupation();
    Occupation(const Occupation&) = delete;
    Occupation& operator=(const Occupation&) = delete;

    /// Keeps the engine until the work has taken `pace` times `shortest`, the shortest time measured for such work, which is updated.
    /// Yielding work may leave the engine meanwhile and continue later.
    void keep(double pace, std::chrono::nanoseconds& shortest);

   private:
    using Clock = std::chrono::steady_clock;
    bool wanted() const noexcept override { return engine_.waiting_.load(std::memory_order_relaxed) > 0; }
    void take() override;

    SimEngine& engine_;
    const std::function<void()>& gives_way_;
    bool inside_ = false;
    Clock::time_point start_;  // start of the work, plus the time for which it has left the engine
    std::optional<LoopBreakScope> breaks_;
  };

  /// Returns the total time that non-yielding work has waited for the engine.
  uint64_t waited_ns() const { return waited_ns_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  void enter();
  void enter_last(const std::function<void()>& check);
  void leave(bool gave_way);
  /// Keeps the engine until the given time. If non-yielding work takes the engine meanwhile, returns when it did; otherwise nullopt.
  std::optional<Clock::time_point> stay(Clock::time_point until);

  std::mutex mutex_;
  std::atomic<bool> busy_{false};
  std::atomic<int> waiting_{0};  // number of pieces of non-yielding work that wait
  std::atomic<uint64_t> waited_ns_{0};
  uint64_t tickets_ = 0, next_ = 0;
  std::condition_variable changed_;
  Clock::time_point ended_;      // when the last non-yielding work ended
  std::list<const void*> last_;  // yielding work that waits for the engine, in order of arrival
  std::condition_variable last_changed_;
  // Not null while stay() keeps the engine for yielding work whose computation is done. Non-yielding work that takes the engine writes the
  // time there.
  std::optional<Clock::time_point>* stays_ = nullptr;
};

}  // namespace treadle
