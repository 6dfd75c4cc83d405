// The runs of a session that are under way: what close() cancels and waits for.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "core/fork_mutex.h"
#include "core/recorder.h"
#include "treadle/session.h"

namespace treadle {

class RunsInFlight : public std::enable_shared_from_this<RunsInFlight> {
 public:
  /// One run, from construction to destruction; usually on the stack of the thread that runs.
  class Entry {
   public:
    /// @param tag  must outlive the entry. @throws Error(cancelled) if the session is closed.
    Entry(RunsInFlight& runs, uint64_t run_id, std::string_view tag);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    /// The run takes place on this thread, not on the one that made the entry.
    void runs_on_this_thread();
    /// The thread that made the entry goes on without the run: if it closes the session, it waits for it as for any other.
    void caller_left();

   private:
    friend class RunsInFlight;
    RunsInFlight& runs_;
    uint64_t run_id_;
    std::string_view tag_;
    std::thread::id thread_ = std::this_thread::get_id(), helper_;
    uint64_t start_;  // as read_ticks(), a reading of which costs less than one of the clock
    uint32_t fork_generation_;
    Entry *previous_ = nullptr, *next_ = nullptr;
  };

  /// The entry of a run that may outlive its call, with a tag of its own. It keeps this object, if that is shared. @throws Error(cancelled)
  /// if the session is closed.
  std::shared_ptr<Entry> enter(uint64_t run_id, std::string_view tag);

  /// As Session::close().
  std::vector<UnfinishedRun> close(int64_t timeout_ms);
  bool closed() const { return closing_.load(std::memory_order_relaxed); }
  const std::atomic<bool>& closing() const { return closing_; }
  size_t count() const;

 private:
  std::vector<UnfinishedRun> list(bool all) const;  // under the lock

  const std::chrono::steady_clock::time_point first_time_ = std::chrono::steady_clock::now();
  const uint64_t first_ticks_ = read_ticks();
  mutable ForkMutex mutex_;
  std::condition_variable_any ended_;
  std::atomic<bool> closing_{false};
  Entry* first_ = nullptr;
};

}  // namespace treadle
