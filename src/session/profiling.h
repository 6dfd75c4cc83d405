// One profile of a client while it is taken: a window on the process's recorder, and when it was on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/recorder.h"
#include "profile/plan.h"
#include "profile/stream_file.h"
#include "treadle/profile.h"

namespace treadle {

class Graph;
struct Runtime;

/// Thread-safe. Runs look only at whether any profile of their client is on.
class Profiling {
 public:
  Profiling(const Runtime& runtime, const ProfilerOptions& options);
  ~Profiling();
  Profiling(const Profiling&) = delete;
  Profiling& operator=(const Profiling&) = delete;

  /// Runs that begin from now on are of the profile, or are not.
  void set(bool on);
  bool is_on() const;
  /// Somebody has what was recorded.
  void note_read() const { is_read_.store(true, std::memory_order_relaxed); }
  bool is_read() const { return is_read_.load(std::memory_order_relaxed); }

  const RecordWindow& window() const { return window_; }
  RecordWindow& window() { return window_; }
  bool names_passes() const { return names_passes_; }
  /// From, until: when it was on. The last one may be open (UINT64_MAX).
  std::vector<std::pair<uint64_t, uint64_t>> intervals() const;
  /// Bytes of each class when the profile began.
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

/// What was recorded so far.
Profile recorded_profile(profile::ProfilePlan plan, const Profiling& profiling);

/// Tells each node the passes that made it, and why other kernels of its operator do not compute it. Clients keep neither what the
/// optimiser did, nor the constants that kernels have packed.
/// @param optimise_again  makes and optimises the graph as it was made for the client, on this thread
void name_passes(Profile& profile, const std::function<std::shared_ptr<const Graph>()>& optimise_again);

/// What a Profiler is made of.
struct Profiler::Impl {
  using Plan = std::function<profile::ProfilePlan(const Profiling&)>;

  /// @param owner  of the runtime; null for a client that must outlive its profilers
  /// @param plan   of the client as it is now; thread-safe
  /// @param ends   for a file that another process waits for; its `stop` is set here
  Impl(std::shared_ptr<const void> owner, const Runtime& runtime, const ProfilerOptions& options, Plan plan,
       profile::AwaitedFile ends = {});

  const std::shared_ptr<const void> owner;
  const Plan plan;
  Profiling profiling;
  std::unique_ptr<profile::StreamWriter> stream;  // last: it goes first. Null: the recorder keeps what is recorded
};

}  // namespace treadle
