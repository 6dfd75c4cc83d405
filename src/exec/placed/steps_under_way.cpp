#include "exec/placed/steps_under_way.h"

#include <algorithm>

namespace treadle::exec {
namespace {

constexpr size_t kMostUnderWay = 16;  // limit of the steps under way; a changed memory limit is kept from the next step on that is issued
constexpr uint64_t kStepsPerEvent = 8;

}  // namespace

void StepsUnderWay::record(int stream) {
  Progress& progress = progress_[static_cast<size_t>(stream)];
  Stream& queue = streams_.at(stream);
  std::shared_ptr<Event> event = queue.device().create_event();
  queue.record(*event);
  progress.events.emplace_back(progress.issued, std::move(event));
}

StepsUnderWay::Mark StepsUnderWay::note_issued(int stream, bool with_event) {
  Progress& progress = progress_[static_cast<size_t>(stream)];
  const Mark mark{stream, ++progress.issued};
  in_order_.push_back(mark);
  const uint64_t last = progress.events.empty() ? progress.done : progress.events.back().first;
  if (with_event || progress.issued - last >= kStepsPerEvent) record(stream);
  return mark;
}

void StepsUnderWay::await_earlier() {
  while (!in_order_.empty() && (in_order_.size() >= kMostUnderWay || is_done(in_order_.front()))) {
    if (const std::shared_ptr<Event> event = event_behind(in_order_.front())) event->synchronize();
    in_order_.pop_front();
  }
}

void StepsUnderWay::note_all_done() {
  for (Progress& progress : progress_) {
    progress.done = progress.issued;
    progress.events.clear();
  }
  in_order_.clear();
}

bool StepsUnderWay::is_done(Mark mark) {
  Progress& progress = at(mark);
  while (progress.done < mark.number && !progress.events.empty() && progress.events.front().second->complete()) {
    progress.done = progress.events.front().first;
    progress.events.pop_front();
  }
  return progress.done >= mark.number;
}

std::shared_ptr<Event> StepsUnderWay::event_behind(Mark mark) {
  if (is_done(mark)) return nullptr;
  Progress& progress = at(mark);
  const auto is_behind = [&](const auto& event) { return event.first >= mark.number; };
  auto found = std::find_if(progress.events.begin(), progress.events.end(), is_behind);
  if (found == progress.events.end()) {
    record(mark.stream);
    found = std::prev(progress.events.end());
  }
  return found->second;
}

}  // namespace treadle::exec
