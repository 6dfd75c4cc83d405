// The streams and events of one run on devices.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "exec/placed/placed_steps.h"
#include "exec/run/first_error.h"

namespace treadle::exec {

/// Each run has its own streams and events, so that several runs may be in flight.
class RunStreams {
 public:
  explicit RunStreams(const PlacedSteps& steps);

  /// @param stream  its number in the plan.
  Stream& at(int stream) const { return *streams_[static_cast<size_t>(stream)]; }
  std::span<const std::unique_ptr<Stream>> all() const { return streams_; }

  /// Makes the step's stream wait for steps on other streams that must come before.
  void wait_before(const StreamPlan::Step& step) const;
  /// Records the step's event if another step or the host waits for it. @param host_waits  the host waits for the event here.
  void record_behind(StepId step, bool host_waits);
  /// Waits for all work on all streams, and notes its error.
  void wait_for_all(FirstError& error) const noexcept;
  /// Copies to or from the device and waits for that. No event orders the copy: the host has waited for the work that it depends on.
  void copy_now(int device, void* dst, const void* src, size_t size_bytes, CopyKind kind) const;

 private:
  const PlacedSteps& steps_;
  std::vector<std::unique_ptr<Stream>> streams_;
  IdVector<StepId, std::shared_ptr<Event>> events_;  // null if nothing waits for the step
};

}  // namespace treadle::exec
