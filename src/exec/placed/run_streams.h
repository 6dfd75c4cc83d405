// The streams and events of one run over several devices.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "exec/placed/placed_steps.h"
#include "exec/run/first_error.h"

namespace treadle::exec {

/// The streams and events of one run. Each run has its own, so that several runs may be in progress at the same time.
class RunStreams {
 public:
  explicit RunStreams(const PlacedSteps& steps);

  /// @param stream  number of the stream in the plan
  Stream& at(int stream) const { return *streams_[static_cast<size_t>(stream)]; }
  std::span<const std::unique_ptr<Stream>> all() const { return streams_; }

  /// Makes the step's stream wait for those steps on other streams that must end before this step begins.
  void wait_before(const StreamPlan::Step& step) const;
  /// Records the step's event, behind its work, if another step or the host waits for it. @param host_waits  true if the host waits for it
  void record_behind(StepId step, bool host_waits);
  /// Lets the work that is enqueued from now on wait for all work of another run of the program. The host's own work does not, if it is
  /// done at once: what it reads of the other run, it has waited for.
  void follow(const RunStreams& earlier);
  /// Waits for all work on all streams. If some of it has failed, notes the error in `error`.
  void wait_for_all(FirstError& error) const noexcept;
  /// Copies to or from the device and waits for the copy. Needs no event for ordering, because the host has already waited for the work
  /// that the copy depends on.
  void copy_now(int device, void* dst, const void* src, size_t size_bytes, CopyKind kind) const;

 private:
  const PlacedSteps& steps_;
  std::vector<std::unique_ptr<Stream>> streams_;
  IdVector<StepId, std::shared_ptr<Event>> events_;  // null for a step that nothing waits for
};

}  // namespace treadle::exec
