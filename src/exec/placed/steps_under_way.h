// Tells which of the steps that a run has issued are done.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "exec/placed/run_streams.h"

namespace treadle::exec {

/// Used by runs within memory limits, which free and move values while devices work. The events of the plan's fences do not suffice,
/// because most steps have none. An event costs a submission on some devices, so there is one behind every few steps, or behind each where
/// asked for.
class StepsUnderWay {
 public:
  /// A place in a stream's work: behind as many steps as `number` says.
  struct Mark {
    int stream = 0;
    uint64_t number = 0;
  };

  /// @param streams  must outlive this object
  explicit StepsUnderWay(const RunStreams& streams) : streams_(streams), progress_(streams.all().size()) {}

  /// Notes that a step was issued to the stream, and returns the place behind it. @param with_event  records an event there
  Mark note_issued(int stream, bool with_event);
  /// Waits until so few steps are under way that one more may be issued.
  void await_earlier();
  /// Notes that the host has waited for all streams.
  void note_all_done();

  bool is_done(Mark mark);
  /// Returns an event that completes when the work before the mark is done, or null if that work is done. If there is no such event yet,
  /// records one behind the latest step of the stream.
  std::shared_ptr<Event> event_behind(Mark mark);

 private:
  struct Progress {
    uint64_t issued = 0, done = 0;                                   // numbers of steps
    std::deque<std::pair<uint64_t, std::shared_ptr<Event>>> events;  // each with the number of steps before it
  };
  Progress& at(Mark mark) { return progress_[static_cast<size_t>(mark.stream)]; }
  void record(int stream);

  const RunStreams& streams_;
  std::vector<Progress> progress_;  // by stream
  std::deque<Mark> in_order_;       // the steps that may be under way, in the order of issue
};

}  // namespace treadle::exec
