// Measures the times of a run's steps, as the devices report them.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "core/trace/recorder.h"
#include "exec/placed/placed_steps.h"
#include "exec/run/node_runner.h"

namespace treadle::exec {

/// Converts times of the host's steady clock to ticks of the clock that the trace recorder uses.
class TickClock {
 public:
  uint64_t ticks_at(int64_t steady_ns);

 private:
  ClockAnchor anchor_;
  double ns_per_tick_ = 0;  // 0 while unknown
};

/// Records when the steps of a run began and ended. If a device does not report times, the times at which the host enqueued the work are
/// recorded instead. The host's own stream and the streams with threads always report times.
class WorkTimes {
 public:
  /// Both arguments must outlive this object, which must live until the devices have done the work.
  WorkTimes(const PlacedSteps& steps, const NodeRunner& nodes);

  void begin();
  /// Calls `enqueue`, which enqueues the step's work on the step's stream `queue` or does it at once. @param size_bytes  size of a copy
  template <typename Enqueue>
  void time(StepId step, Stream& queue, size_t size_bytes, Enqueue&& enqueue) {
    if (!wanted()) return enqueue();
    const uint64_t since = read_ticks();
    const bool tells = queue.device().tells_times();
    if (tells) queue.begin_timed();
    try {
      enqueue();
    } catch (...) {
      if (tells) queue.end_timed([](int64_t, int64_t) {});
      throw;
    }
    if (!tells) return note(step, size_bytes, since, read_ticks());
    queue.end_timed([this, step, size_bytes, since](int64_t begin_ns, int64_t end_ns) { told(step, size_bytes, since, begin_ns, end_ns); });
  }

 private:
  bool wanted() const { return control_.recording.recorder || control_.counts_nodes; }
  void told(StepId step, size_t size_bytes, uint64_t since, int64_t begin_ns, int64_t end_ns);
  void note(StepId step, size_t size_bytes, uint64_t begin, uint64_t end);

  const PlacedSteps& steps_;
  const NodeRunner& nodes_;
  const RunControl& control_;
  std::mutex mutex_;
  TickClock clock_;
  std::vector<uint64_t> ends_;  // for each stream of the plan, the end of its last step
};

}  // namespace treadle::exec
