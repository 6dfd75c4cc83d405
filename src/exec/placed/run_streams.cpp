#include "exec/placed/run_streams.h"

#include <algorithm>

#include "treadle/error.h"

namespace treadle::exec {

RunStreams::RunStreams(const PlacedSteps& steps) : steps_(steps), events_(steps.plan().steps.size()) {
  for (const StreamPlan::Stream& stream : steps.plan().streams)
    streams_.push_back(steps.device(stream.device).create_stream(steps.stream_name(static_cast<int>(streams_.size()))));
  for (const StepId s : steps.plan().steps.ids())
    if (steps[s].records) events_[s] = steps.device(steps.device_of(steps[s])).create_event();
}

void RunStreams::wait_before(const StreamPlan::Step& step) const {
  for (const StepId other : step.waits) at(step.stream).wait(events_[other]);
}

void RunStreams::record_behind(StepId s, bool host_waits) {
  const StreamPlan::Step& step = steps_[s];
  if (!step.records && !host_waits) return;
  std::shared_ptr<Event>& event = events_[s];
  if (!event) event = steps_.device(steps_.device_of(step)).create_event();
  at(step.stream).record(*event);
  if (host_waits) event->synchronize();
}

void RunStreams::follow(const RunStreams& earlier) {
  for (const auto& before : earlier.streams_) {
    const std::shared_ptr<Event> event = before->device().create_event();
    before->record(*event);
    for (const auto& stream : streams_)
      if (&stream->device() != &steps_.device(DevicePlacement::kHost) || !stream->device().calls_work_at_once()) stream->wait(event);
  }
}

void RunStreams::wait_for_all(FirstError& error) const noexcept {
  for (const auto& stream : streams_) {
    try {
      stream->synchronize();
    } catch (...) {
      error.note(std::current_exception());
    }
  }
}

void RunStreams::copy_now(int device, void* dst, const void* src, size_t size_bytes, CopyKind kind) const {
  const auto& planned = steps_.plan().streams;
  const auto copy_in = std::find_if(planned.begin(), planned.end(), [&](const StreamPlan::Stream& stream) {
    return stream.device == device && stream.queue == StreamPlan::Queue::copy_in;
  });
  if (copy_in == planned.end()) throw Error(ErrorCode::internal, "a device without a stream for copies");
  Stream& queue = at(static_cast<int>(copy_in - planned.begin()));
  queue.copy(dst, src, size_bytes, kind);
  queue.synchronize();
}

}  // namespace treadle::exec
