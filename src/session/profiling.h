// One profile of a client (a session, trainer or joint module): its window on the process's recorder, and the intervals in which the
// profile was on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/trace/recorder.h"
#include "profile/model/plan.h"
#include "profile/recording/stream_file.h"
#include "treadle/profile.h"

namespace treadle {

class Graph;
struct Runtime;

/// Thread-safe. A run only checks whether any profile of its client is on.
class Profiling {
 public:
  Profiling(const Runtime& runtime, const ProfilerOptions& options);
  ~Profiling();
  Profiling(const Profiling&) = delete;
  Profiling& operator=(const Profiling&) = delete;

  /// Turns the profile on or off for runs that begin from now on.
  void set(bool on);
  bool is_on() const;
  /// Records that the profile's content has been read.
  void note_read() const { is_read_.store(true, std::memory_order_relaxed); }
  bool is_read() const { return is_read_.load(std::memory_order_relaxed); }

  const RecordWindow& window() const { return window_; }
  RecordWindow& window() { return window_; }
  bool names_passes() const { return names_passes_; }
  /// Returns the intervals in which the profile was on, as pairs of start and end in the recorder's ticks. The last interval may be open
  /// (end UINT64_MAX).
  std::vector<std::pair<uint64_t, uint64_t>> intervals() const;
  /// Returns the memory in use, by class, when the profile began.
  const MemoryStatistics& memory_before() const { return memory_before_; }

 private:
  const Runtime& runtime_;
  const bool names_passes_;
  RecordWindow window_;
  MemoryStatistics memory_before_;
  mutable std::atomic<bool> is_read_{false};
  mutable std::mutex mutex_;
  bool on_ = false;
  std::vector<std::pair<uint64_t, uint64_t>> intervals_;
};

/// Returns the profile of everything recorded so far.
Profile recorded_profile(profile::ProfilePlan plan, const Profiling& profiling);

/// Adds to each node the passes that made it and the reasons why other kernels of its operator were not chosen. Clients do not keep this
/// information, nor the constants that kernels have packed, so the graph is optimized again.
/// @param optimize_again  makes and optimizes the client's graph anew, on this thread
void name_passes(Profile& profile, const std::function<std::shared_ptr<const Graph>()>& optimize_again);

/// The implementation of Profiler.
struct Profiler::Impl {
  using Plan = std::function<profile::ProfilePlan(const Profiling&)>;

  /// @param owner  keeps the runtime alive; null for a client that outlives its profilers
  /// @param plan   describes the client as it is now; thread-safe
  /// @param ends   names the file that another process waits for; the recording is written there at its end. `ends.stop` is set to a
  ///               function that stops this profile
  Impl(std::shared_ptr<const void> owner, const Runtime& runtime, const ProfilerOptions& options, Plan plan,
       profile::AwaitedFile ends = {});

  const std::shared_ptr<const void> owner;
  const Plan plan;
  Profiling profiling;
  // null: records stay in the recorder. Must be the last member, so that it is destroyed first.
  std::unique_ptr<profile::StreamWriter> stream;
};

}  // namespace treadle
