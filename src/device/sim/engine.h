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

/// Runs one piece of work at a time, in order of arrival. Work that yields lets all other work go first: it begins when there was none for
/// a moment, and leaves the engine between two chunks of its loops when some arrives, to continue later. This models a device that preempts
/// kernels (REEF, OSDI 2022) or runs them in slices (Tally, ASPLOS 2025).
class SimEngine {
 public:
  /// While it lives, the calling thread computes on the engine.
  class Occupation final : LoopBreak {
   public:
    /// @param gives_way  empty: does not yield; otherwise called now and then during waits, and may throw
    Occupation(SimEngine& engine, const std::function<void()>& gives_way);
    ~Occupation();
    Occupation(const Occupation&) = delete;
    Occupation& operator=(const Occupation&) = delete;

    /// Keeps the engine until the work has taken `pace` times the shortest time measured for the same work. Yielding work leaves in
    /// between, and continues later.
    void keep(double pace, std::chrono::nanoseconds& shortest);

   private:
    using Clock = std::chrono::steady_clock;
    bool wanted() const noexcept override { return engine_.waiting_.load(std::memory_order_relaxed) > 0; }
    void take() override;

    SimEngine& engine_;
    const std::function<void()>& gives_way_;
    bool inside_ = false;
    Clock::time_point start_;  // shifted by the time away
    std::optional<LoopBreakScope> breaks_;
  };

  /// Total time that non-yielding work has waited for the engine.
  uint64_t waited_ns() const { return waited_ns_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  void enter();
  void enter_last(const std::function<void()>& check);
  void leave(bool gave_way);
  /// Keeps the engine until then. Returns earlier if non-yielding work takes it, with the time when it did.
  std::optional<Clock::time_point> stay(Clock::time_point until);

  std::mutex mutex_;
  std::atomic<bool> busy_{false};
  std::atomic<int> waiting_{0};  // number of waiting pieces of non-yielding work
  std::atomic<uint64_t> waited_ns_{0};
  uint64_t tickets_ = 0, next_ = 0;
  std::condition_variable changed_;
  Clock::time_point ended_;      // end of the last non-yielding work
  std::list<const void*> last_;  // yielding work, in order
  std::condition_variable last_changed_;
  std::optional<Clock::time_point>* stays_ = nullptr;  // set by work that takes the engine from yielding work that has already computed
};

}  // namespace treadle
