#include "core/load_phases.h"

#include <mutex>

#include "core/recorder.h"

namespace treadle {

thread_local constinit LoadPhases* LoadPhases::current_ = nullptr;

size_t LoadPhases::begin(std::string_view name) {
  std::lock_guard lock(mutex_);
  phases_.push_back({std::string(name), open_, read_ticks(), 0});
  open_ = static_cast<int32_t>(phases_.size() - 1);
  return phases_.size() - 1;
}

void LoadPhases::end(size_t index) noexcept {
  std::lock_guard lock(mutex_);
  phases_[index].end = read_ticks();
  open_ = phases_[index].parent;
}

void LoadPhases::add(std::span<const LoadPhase> phases) {
  std::lock_guard lock(mutex_);
  if (phases_.size() + phases.size() > kMost) return;
  const auto first = static_cast<int32_t>(phases_.size());
  for (LoadPhase phase : phases) {
    if (phase.parent >= 0) phase.parent += first;
    phases_.push_back(std::move(phase));
  }
}

std::vector<LoadPhase> LoadPhases::phases() const {
  std::lock_guard lock(mutex_);
  std::vector<LoadPhase> copy = phases_;
  for (LoadPhase& phase : copy)
    if (phase.end == 0) phase.end = read_ticks();
  return copy;
}

}  // namespace treadle
