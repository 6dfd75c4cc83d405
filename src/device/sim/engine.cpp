#include "device/sim/engine.h"

#include <algorithm>
#include <thread>

#include "core/base/futex.h"

namespace treadle {
namespace {

// How long the engine must be idle before yielding work begins. Jobs issue their next node about ten microseconds after the previous one
// ends, and yielding work must not begin in such a gap.
constexpr auto kSettle = std::chrono::microseconds(100);
constexpr auto kLongestLook = std::chrono::microseconds(1000);  // longest time between two checks for idleness
// How long a thread spins for a busy engine before it sleeps. Yielding work usually leaves sooner, and waking a thread takes longer.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr auto kOversleep = std::chrono::microseconds(20);  // by how much sleeping usually exceeds the requested time

}  // namespace

SimEngine::Occupation::Occupation(SimEngine& engine, const std::function<void()>& gives_way) : engine_(engine), gives_way_(gives_way) {
  if (!gives_way_) {
    engine_.enter();
  } else {
    engine_.enter_last(gives_way_);
    breaks_.emplace(static_cast<LoopBreak*>(this));
  }
  inside_ = true;
  start_ = Clock::now();
}

SimEngine::Occupation::~Occupation() {
  if (inside_) engine_.leave(static_cast<bool>(gives_way_));
}

void SimEngine::Occupation::take() {
  const auto left = Clock::now();
  engine_.leave(/*gave_way=*/true);
  inside_ = false;
  engine_.enter_last(gives_way_);
  inside_ = true;
  start_ += Clock::now() - left;
}

void SimEngine::Occupation::keep(double pace, std::chrono::nanoseconds& shortest) {
  shortest = std::min<std::chrono::nanoseconds>(shortest, Clock::now() - start_);
  const auto whole = std::chrono::nanoseconds(static_cast<int64_t>(pace * static_cast<double>(shortest.count())));
  for (Clock::time_point now; (now = Clock::now()) < start_ + whole;) {
    const Clock::duration rest = start_ + whole - now;
    if (gives_way_) {
      const auto taken = engine_.stay(start_ + whole);
      if (!taken) return;
      inside_ = false;
      engine_.enter_last(gives_way_);
      inside_ = true;
      start_ += Clock::now() - *taken;
    } else if (rest > kOversleep) {
      std::this_thread::sleep_for(rest - kOversleep);
    } else {
      cpu_relax();
    }
  }
}

// If other work takes the engine meanwhile, this thread is not woken; it notices this at the end of its sleep.
std::optional<SimEngine::Clock::time_point> SimEngine::stay(Clock::time_point until) {
  std::optional<Clock::time_point> taken;
  {
    std::lock_guard lock(mutex_);
    if (waiting_ > 0) {
      busy_ = false;
      changed_.notify_all();
      return Clock::now();
    }
    stays_ = &taken;
  }
  std::this_thread::sleep_until(until);
  std::lock_guard lock(mutex_);
  if (stays_ == &taken) stays_ = nullptr;
  return taken;
}

void SimEngine::enter() {
  waiting_.fetch_add(1);
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  if (stays_) {
    *stays_ = start;
    stays_ = nullptr;
    busy_ = false;
  }
  if (busy_) {
    lock.unlock();
    for (const auto until = start + kSpin; busy_.load(std::memory_order_relaxed) && Clock::now() < until;) cpu_relax();
    lock.lock();
  }
  const uint64_t ticket = tickets_++;
  changed_.wait(lock, [&] { return !busy_ && next_ == ticket; });
  ++next_;
  busy_ = true;
  waiting_.fetch_sub(1);
  waited_ns_.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - start).count()), std::memory_order_relaxed);
}

// Waits until yielding work may begin, by checking from time to time. Other work that ends does not wake this thread, because waking would
// delay that work.
void SimEngine::enter_last(const std::function<void()>& check) {
  std::unique_lock lock(mutex_);
  const auto own = last_.insert(last_.end(), this);
  try {
    for (const auto start = Clock::now();;) {
      const auto now = Clock::now();
      if (!busy_ && waiting_ == 0 && now >= ended_ + kSettle && own == last_.begin()) break;
      last_changed_.wait_for(lock, std::clamp<Clock::duration>((now - start) / 2, 2 * kSettle, kLongestLook));
      lock.unlock();
      check();
      lock.lock();
    }
  } catch (...) {
    lock.lock();
    last_.erase(own);
    throw;
  }
  last_.erase(own);
  busy_ = true;
}

void SimEngine::leave(bool gave_way) {
  std::lock_guard lock(mutex_);
  busy_ = false;
  if (!gave_way) ended_ = Clock::now();
  if (waiting_ > 0)
    changed_.notify_all();
  else if (!last_.empty() && gave_way)
    last_changed_.notify_all();
}

}  // namespace treadle
