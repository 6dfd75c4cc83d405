#include "core/trace/load_phases.h"

#include <mutex>
#include <utility>

#include "core/trace/recorder.h"

namespace treadle {

thread_local constinit LoadPhases* LoadPhases::current_ = nullptr;

size_t LoadPhases::begin(std::string_view name, std::shared_ptr<const std::string> own) {
  std::lock_guard lock(mutex_);
  constexpr size_t kOfASmallModel = 128;
  if (phases_.capacity() < kOfASmallModel) phases_.reserve(kOfASmallModel);
  phases_.push_back({name, std::move(own), open_, read_ticks(), 0});
  open_ = static_cast<int32_t>(phases_.size() - 1);
  return phases_.size() - 1;
}

void LoadPhases::end(size_t index) noexcept {
  std::lock_guard lock(mutex_);
  phases_[index].end = read_ticks();
  open_ = phases_[index].parent;
}

void LoadPhases::add(const LoadPhases& others) {
  std::vector<Noted> more = others.noted();
  std::lock_guard lock(mutex_);
  if (phases_.size() + more.size() > kMost) return;
  const auto first = static_cast<int32_t>(phases_.size());
  for (Noted& phase : more) {
    if (phase.parent >= 0) phase.parent += first;
    phases_.push_back(std::move(phase));
  }
}

std::vector<LoadPhases::Noted> LoadPhases::noted() const {
  std::lock_guard lock(mutex_);
  return phases_;
}

std::vector<LoadPhase> LoadPhases::phases() const {
  std::vector<LoadPhase> copies;
  for (const Noted& phase : noted())
    copies.push_back(
        {phase.own ? *phase.own : std::string(phase.name), phase.parent, phase.start, phase.end == 0 ? read_ticks() : phase.end});
  return copies;
}

}  // namespace treadle
