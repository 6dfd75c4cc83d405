// The runs of a session that are in progress, which close() cancels and waits for.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/fork_mutex.h"
#include "core/trace/node_counters.h"
#include "core/trace/recorder.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle {

/// What runs have done while they were counted (treadle/metrics.h).
struct RunCounts {
  static constexpr size_t kForeign = 0;  ///< index in `errors` for exceptions of other types than Error, such as those of user callbacks
  TickHistogram times;                   ///< durations of ended runs
  uint64_t input_bytes = 0, output_bytes = 0;
  std::array<int64_t, static_cast<size_t>(ErrorCode::internal) + 1> errors{};  ///< number of failures, by ErrorCode

  void add(const RunCounts& more);
};

class RunsInFlight : public std::enable_shared_from_this<RunsInFlight> {
 public:
  /// @param owner  how errors call the client, such as "the session"
  explicit RunsInFlight(std::string owner = "the session") : owner_(std::move(owner)) {}
  /// True if the runs of all clients are counted.
  static bool counts_runs() noexcept { return counting_.load(std::memory_order_relaxed); }
  static void count_runs(bool on) noexcept { counting_.store(on, std::memory_order_relaxed); }

  /// Registers one run for the lifetime of this object, which usually lives on the stack of the thread that runs.
  class Entry {
   public:
    /// @param tag  must outlive the entry.
    /// @throws Error(cancelled) if the session is closed.
    Entry(RunsInFlight& runs, uint64_t run_id, std::string_view tag);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    /// Must be called by the helper thread that takes over a run with a deadline from the thread that made the entry.
    void runs_on_this_thread();
    /// Must be called when the thread that made the entry stops waiting for the run: if it then closes the session, close() waits for this
    /// run too.
    void caller_left();
    /// Sets the bytes of the values that the run was fed and that it returned. The destructor adds them to the session's counts.
    void note_bytes(size_t inputs, size_t outputs) { input_bytes_ = inputs, output_bytes_ = outputs; }

   private:
    friend class RunsInFlight;
    RunsInFlight& runs_;
    uint64_t run_id_;
    std::string_view tag_;
    std::thread::id thread_ = std::this_thread::get_id(), helper_;
    uint64_t start_;  // from read_ticks(), which is cheaper than reading the clock
    size_t input_bytes_ = 0, output_bytes_ = 0;
    uint32_t fork_generation_;
    Entry *previous_ = nullptr, *next_ = nullptr;
  };

  /// Registers a run that may outlive its caller. The entry owns a copy of the tag, and keeps this object alive if a shared_ptr owns it.
  /// @throws Error(cancelled) if the session is closed.
  std::shared_ptr<Entry> enter(uint64_t run_id, std::string_view tag);

  /// Implements Session::close().
  std::vector<UnfinishedRun> close(int64_t timeout_ms);
  bool closed() const { return closing_.load(std::memory_order_relaxed); }
  const std::atomic<bool>& closing() const { return closing_; }
  size_t count() const;

  /// Counts the bytes of values that a run is fed or returns, for callers that do not use Entry::note_bytes().
  void count_bytes(size_t inputs, size_t outputs);
  /// Calls work(), and counts the error if it throws one.
  template <typename Work>
  decltype(auto) counting_errors(Work&& work) {
    try {
      return work();
    } catch (const Error& error) {
      count_error(static_cast<size_t>(error.code()));
      throw;
    } catch (...) {
      count_error(RunCounts::kForeign);
      throw;
    }
  }
  RunCounts counts() const;

 private:
  void count_error(size_t code) noexcept;
  std::vector<UnfinishedRun> list(bool all) const;  // @pre the caller holds mutex_

  const std::string owner_;
  const std::chrono::steady_clock::time_point first_time_ = std::chrono::steady_clock::now();
  const uint64_t first_ticks_ = read_ticks();
  mutable ForkMutex mutex_;
  std::condition_variable_any ended_;
  std::atomic<bool> closing_{false};
  Entry* first_ = nullptr;
  std::unique_ptr<RunCounts> counts_;  // null until a run begins that is counted
  static inline std::atomic<bool> counting_{false};
};

}  // namespace treadle
