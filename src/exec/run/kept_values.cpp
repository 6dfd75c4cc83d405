#include "exec/run/kept_values.h"

#include <algorithm>
#include <cstring>

#include "exec/plan/binding.h"
#include "exec/program/program.h"
#include "memory/relocate.h"
#include "sharing/job_table.h"

namespace treadle::exec {
namespace {

const BudgetedPlan::Stay* stay_at(const BudgetedPlan& plan, BufferId buffer, int32_t step) {
  for (const BudgetedPlan::Stay& stay : plan.stays[buffer])
    if (stay.first <= step && step <= stay.last) return &stay;
  return nullptr;
}

// Returns true if the value has been computed before the step, and is used at the step or later.
bool is_needed(const RunState& state, BufferId buffer, int32_t step) {
  if (state.binding().buffer_sizes()[buffer] == 0) return false;
  if (const BudgetedPlan* plan = state.budget().get()) return plan->is_alive_around(buffer, step);
  const BufferInfo& info = state.program().buffers()[buffer];
  return info.first < InstructionId{step} && InstructionId{step} <= info.last;
}

// For a value that is not in the arena at the step: returns true if the file has no copy either, because the value is recomputed later.
bool is_away_without_copy(const BudgetedPlan& plan, BufferId buffer, int32_t step) {
  int32_t left = -1;
  for (const BudgetedPlan::Stay& stay : plan.stays[buffer])
    if (stay.last < step) left = std::max(left, stay.last);
  const auto& drops = plan.drops[buffer];
  return std::find(drops.begin(), drops.end(), left) != drops.end();
}

// Returns true if the plan loads the value from the file after this step. The value may have been written to the file before the step.
bool is_loaded_later(const BudgetedPlan& plan, BufferId buffer, int32_t step) {
  for (size_t m = plan.first_move[static_cast<size_t>(step) + 1]; m < plan.moves.size(); ++m) {
    if (plan.moves[m].buffer != buffer || plan.moves[m].kind == BudgetedPlan::Kind::recompute) continue;
    return plan.moves[m].kind == BudgetedPlan::Kind::load;
  }
  return false;
}

}  // namespace

std::optional<KeptValues> KeptValues::find(RunState& state, SpillStore& spilled, int32_t step, bool is_moved) {
  KeptValues kept(state, spilled, step);
  const BudgetedPlan* plan = state.budget().get();
  for (BufferId b : state.program().buffers().ids()) {
    if (!is_needed(state, b, step)) continue;
    const bool stays = !plan || stay_at(*plan, b, is_moved ? step : step - 1);
    if (!stays && is_away_without_copy(*plan, b, step)) return std::nullopt;
    kept.values_.push_back({b, state.binding().buffer_sizes()[b], stays ? state.place_of(b) : RunState::kAway});
  }
  return kept;
}

IdVector<BufferId, bool> KeptValues::away() const {
  IdVector<BufferId, bool> away(state_->program().num_buffers(), false);
  for (const Kept& value : values_) away[value.buffer] = value.from == RunState::kAway;
  return away;
}

void KeptValues::aim() {
  const BudgetedPlan* plan = state_->budget().get();
  if (!files_) files_ = state_->budget();
  for (Kept& value : values_) {
    const BudgetedPlan::Stay* stay = plan ? stay_at(*plan, value.buffer, step_) : nullptr;
    value.to = !plan ? state_->place_of(value.buffer) : stay ? stay->offset : RunState::kAway;
    value.is_wanted = plan && is_loaded_later(*plan, value.buffer, step_);
  }
}

size_t KeptValues::bytes_to_move() const {
  size_t bytes = 0;
  for (const Kept& value : values_)
    if (value.from != value.to) bytes += value.size_bytes;
  return bytes;
}

void KeptValues::write_all() {
  for (Kept& value : values_) {
    if (value.from == RunState::kAway) continue;
    spilled_->write(in_file(value), state_->arena() + value.from, value.size_bytes);
    value.from = RunState::kAway;
  }
}

void KeptValues::copy_from(const std::byte* arena_before) {
  const uint64_t start = sharing::now_ns();
  size_t bytes = 0;
  for (Kept& value : values_) {
    if (value.from == RunState::kAway) continue;
    if (value.to != RunState::kAway) {
      std::memcpy(state_->arena() + value.to, arena_before + value.from, value.size_bytes);
      bytes += value.size_bytes;
    } else if (value.is_wanted) {
      spilled_->write(in_file(value), arena_before + value.from, value.size_bytes);
    }
    value.from = value.to;
  }
  spilled_->count(bytes, start);
}

void KeptValues::arrange() {
  std::vector<memory::Relocation> moves;
  std::vector<size_t> file_offsets;
  size_t bytes = 0;
  for (const Kept& value : values_) {
    if (value.from == RunState::kAway) continue;
    if (value.is_wanted) spilled_->write(in_file(value), state_->arena() + value.from, value.size_bytes);
    if (value.to == RunState::kAway) continue;
    moves.push_back({value.from, value.to, value.size_bytes});
    file_offsets.push_back(in_file(value));
    if (value.from != value.to) bytes += value.size_bytes;
  }
  const uint64_t start = sharing::now_ns();
  std::byte* const arena = state_->arena();
  memory::relocate(arena, state_->arena_bytes(), moves,
                   {[&](size_t i, size_t offset) { spilled_->write(file_offsets[i], arena + offset, moves[i].size_bytes); },
                    [&](size_t i, size_t offset) { spilled_->read(file_offsets[i], arena + offset, moves[i].size_bytes); }});
  if (bytes > 0) spilled_->count(bytes, start);
  for (const Kept& value : values_) {
    if (value.from == RunState::kAway && value.to != RunState::kAway) spilled_->read(in_file(value), arena + value.to, value.size_bytes);
    if (state_->budget()) state_->set_place(value.buffer, value.to);
  }
}

void KeptValues::stay() {
  for (const Kept& value : values_)
    if (state_->budget()) state_->set_place(value.buffer, value.from);
}

}  // namespace treadle::exec
