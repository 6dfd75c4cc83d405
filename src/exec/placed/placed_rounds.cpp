#include "exec/placed/placed_rounds.h"

#include <algorithm>

namespace treadle::exec {
namespace {

// One round runs, and the next ones wait on the devices while the host issues another.
constexpr size_t kMostRounds = 4;

bool has_bodies(const Program& program) {
  const auto& instructions = program.instructions();
  return std::any_of(instructions.begin(), instructions.end(), [](const Instruction& i) { return !i.bodies.empty(); });
}

}  // namespace

PlacedRounds::PlacedRounds(PlacedSchedule& schedule)
    : schedule_(schedule), has_bodies_(has_bodies(schedule.steps().program())), runs_(kMostRounds) {}

bool PlacedRounds::waits_for_each(const RunControl& control) const {
  return has_bodies_ || control.observer || control.job || schedule_.memory().keeps_limits() || schedule_.memory().is_full();
}

void PlacedRounds::run(std::span<const Datum> feeds, std::span<Datum> results, const RunControl& control,
                       std::span<const int64_t> parent_values, size_t looked_at) {
  std::unique_ptr<PlacedRun>& made = runs_[next_];
  if (!made) made = std::make_unique<PlacedRun>(schedule_);
  PlacedRun& run = *made;
  if (under_way_ == runs_.size()) {
    run.finish();
    --under_way_;
  }
  if (waits_for_each(control) || !run.takes_from_devices(feeds)) finish();
  if (last_ && last_ != &run) run.share_arenas(*last_);
  std::vector<OutputMemory> memory(results.size());
  for (size_t k = 0; k < memory.size(); ++k) memory[k].stays = k != looked_at;
  run.start(feeds, {}, control, memory, parent_values);
  bool is_complete = false;
  if (waits_for_each(control)) {  // start() may have found the device too small
    finish();
    free_arenas_but(run);
    is_complete = run.advance();
  } else {
    num_issued_ahead_ += under_way_ > 0 ? 1 : 0;
    is_complete = run.issue_behind(under_way_ > 0 ? last_ : nullptr);
    ++under_way_;
    next_ = (next_ + 1) % runs_.size();
    if (!is_complete || run.hands_out_what_devices_copy()) finish();
  }
  last_ = &run;
  if (!is_complete) throw_stops_at_yield();
  run.take_outputs(results);
}

void PlacedRounds::free_arenas_but(const PlacedRun& run) const noexcept {
  for (const auto& other : runs_)
    if (other && other.get() != &run) other->trim();
}

void PlacedRounds::finish() {
  for (; under_way_ > 0; --under_way_) runs_[(next_ + runs_.size() - under_way_) % runs_.size()]->finish();
}

void PlacedRounds::clear() noexcept {
  for (const auto& run : runs_)
    if (run) run->clear();
  under_way_ = 0;
}

}  // namespace treadle::exec
