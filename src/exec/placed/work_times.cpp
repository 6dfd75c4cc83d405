#include "exec/placed/work_times.h"

#include <algorithm>
#include <cmath>

#include "exec/run/run_instruction.h"

namespace treadle::exec {

// Converts a time relative to a moment at which both clocks were read. The moment is recent, so a wrong clock rate causes little error.
uint64_t TickClock::ticks_at(int64_t steady_ns) {
  constexpr int64_t kNearNs = 10'000'000;
  if (ns_per_tick_ == 0 || std::abs(steady_ns - anchor_.steady_ns) > kNearNs) {
    anchor_ = Recorder::read_anchor();
    ns_per_tick_ = Recorder::of_process().ns_per_tick();
  }
  return anchor_.ticks + static_cast<uint64_t>(std::llround(static_cast<double>(steady_ns - anchor_.steady_ns) / ns_per_tick_));
}

WorkTimes::WorkTimes(const PlacedSteps& steps, const NodeRunner& nodes)
    : steps_(steps), nodes_(nodes), control_(nodes.control()), ends_(steps.plan().streams.size(), 0) {}

void WorkTimes::begin() { std::fill(ends_.begin(), ends_.end(), 0); }

// The clocks of host and device differ by up to some microseconds. Three facts limit the error: work begins after the host has enqueued it
// and after earlier work of the stream has ended, and it has ended by now.
void WorkTimes::told(StepId step, size_t size_bytes, uint64_t since, int64_t begin_ns, int64_t end_ns) {
  const uint64_t now = read_ticks();
  uint64_t begin = 0, end = 0;
  {
    std::lock_guard lock(mutex_);
    uint64_t& last = ends_[static_cast<size_t>(steps_[step].stream)];
    const uint64_t earliest = std::min(std::max(since, last), now);
    begin = std::clamp(clock_.ticks_at(begin_ns), earliest, now);
    last = end = std::clamp(clock_.ticks_at(end_ns), begin, now);
  }
  note(step, size_bytes, begin, end);
}

void WorkTimes::note(StepId step, size_t size_bytes, uint64_t begin, uint64_t end) {
  const RunRecording& recording = control_.recording;
  if (steps_[step].is_copy()) {
    const auto bytes = static_cast<int64_t>(2 * size_bytes);  // the bytes are read and written
    if (recording.recorder) recording.recorder->record(steps_.record_name(step), RecordKind::copy, begin, end, 0, bytes, recording.run);
    return;
  }
  if (NodeCounters* const counters = nodes_.counters()) counters->add_shared(index_of(steps_[step].instruction), end - begin);
  if (recording.recorder) recording.record_node(steps_.record_name(step), begin, end);
}

}  // namespace treadle::exec
