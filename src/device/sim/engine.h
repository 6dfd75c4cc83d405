// What computes on a simulated device whose streams share one engine.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>

#include "core/thread_pool.h"

namespace treadle {

/// One piece of work at a time, in the order in which they come. Work that gives way lets all other work go first: it begins when none was
/// there for a moment, and leaves the engine between two chunks of its loops as soon as some comes, to go on later from there. That
/// stands for a device that ends a kernel in the middle (REEF, OSDI 2022) or runs it in slices (Tally, ASPLOS 2025).
class SimEngine {
 public:
  /// The calling thread computes, for as long as it lives.
  class Occupation final : LoopBreak {
   public:
    /// @param gives_way  empty: it does not; else called now and then while it waits, and may throw.
    Occupation(SimEngine& engine, const std::function<void()>& gives_way);
    ~Occupation();
    Occupation(const Occupation&) = delete;
    Occupation& operator=(const Occupation&) = delete;

    /// Keeps the engine until the work has taken `pace` times the shortest time that the same work has had; work that gives way leaves in
    /// between, and goes on later.
    void keep(double pace, std::chrono::nanoseconds& shortest);

   private:
    using Clock = std::chrono::steady_clock;
    bool wanted() const noexcept override { return engine_.waiting_.load(std::memory_order_relaxed) > 0; }
    void take() override;

    SimEngine& engine_;
    const std::function<void()>& gives_way_;
    bool inside_ = false;
    Clock::time_point start_;  // moved on by the time away
    std::optional<LoopBreakScope> breaks_;
  };

  /// That work which does not give way has waited for the engine, all together.
  uint64_t waited_ns() const { return waited_ns_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  void enter();
  void enter_last(const std::function<void()>& check);
  void leave(bool gave_way);
  /// Keeps the engine until then, unless work that does not give way takes it: when.
  std::optional<Clock::time_point> stay(Clock::time_point until);

  std::mutex mutex_;
  std::atomic<bool> busy_{false};
  std::atomic<int> waiting_{0};  // work that does not give way
  std::atomic<uint64_t> waited_ns_{0};
  uint64_t tickets_ = 0, next_ = 0;
  std::condition_variable changed_;
  Clock::time_point ended_;      // the last work that does not give way
  std::list<const void*> last_;  // that gives way, in order
  std::condition_variable last_changed_;
  std::optional<Clock::time_point>* stays_ = nullptr;  // of work that gives way and computes no more: set by who takes the engine from it
};

}  // namespace treadle
