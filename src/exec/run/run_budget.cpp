#include "exec/run/run_budget.h"

#include <memory>
#include <optional>
#include <utility>

#include "core/values/allocation.h"
#include "exec/memory/memory_pass.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {

std::unique_lock<std::mutex> RunBudget::begin() {
  moves_.begin();
  // If a limit changes after a plan was chosen and before its memory is free, another plan is chosen.
  for (;;) {
    try {
      choose();
      return wait_for_memory();
    } catch (const OutOfMemory&) {
      if (!is_outdated()) throw;
    }
  }
}

void RunBudget::begin_without_limit() {
  is_capped_ = false;
  if (state_.budget()) state_.set_budget(nullptr);
}

InstructionId RunBudget::instruction_at(size_t step) const {
  return state_.budget() ? state_.budget()->instruction_at(step) : id_at<InstructionId>(step);
}

void RunBudget::note(const PlanChoice& choice) {
  later_bytes_ = choice.later_bytes;
  is_capped_ = choice.is_capped;
}

void RunBudget::choose() {
  generation_ = pass().generation();
  PlanChoice choice = chooser_.for_run();
  note(choice);
  state_.set_budget(std::move(choice.plan));  // set before waiting, because the text of an out-of-memory error needs the plan
  if (choice.unmet) pass().refuse(*choice.unmet);
}

void RunBudget::choose_rest(const KeptValues& kept) {
  generation_ = pass().generation();
  PlanChoice choice = chooser_.for_rest(kept.step(), kept.away());
  note(choice);
  state_.set_lodges(false);  // places no more gradients in the arena; the plan has offsets for the values in it
  if (choice.plan != state_.budget()) state_.set_budget(std::move(choice.plan));
}

// For a run that begins: waits until the limits leave room for its arena and its outputs.
std::unique_lock<std::mutex> RunBudget::wait_for_memory() {
  if (!is_capped_) return pass().admit(0, 0, control_.stop.interruption(), [] { return size_t{0}; });
  const size_t arena_bytes = rounded(state_.needed_arena_bytes());
  const bool has_arena = state_.has_arena() && rounded(state_.arena_bytes()) == arena_bytes;
  if (!has_arena) state_.drop_arena();
  const auto let_go = [&] {
    state_.drop_arena();
    return has_arena ? arena_bytes : 0;
  };
  return pass().admit((has_arena ? 0 : arena_bytes) + outputs_.bytes_to_allocate(), later_bytes_, control_.stop.interruption(), let_go);
}

void RunBudget::move_values(size_t step, sharing::Turn& turn) {
  if (is_outdated()) follow_limit(static_cast<int32_t>(step));
  if (state_.budget()) moves_.make_before(step, turn);
}

// Must be called after a limit has changed. Moves values to their offsets in a new plan, or to the file if that plan does not keep them in
// memory. Grows the arena only if memory is free now and the change saves more than it costs; otherwise the run keeps its present plan.
// Changes nothing while some value is neither in the arena nor in the file (it will be recomputed); the next step then tries again.
void RunBudget::follow_limit(int32_t step) {
  const auto before = state_.budget();
  std::optional<KeptValues> kept = KeptValues::find(state_, moves_.spilled(), step, moves_.are_done_before(static_cast<size_t>(step)));
  if (!kept) return;
  choose_rest(*kept);
  if (before == state_.budget()) return;
  kept->aim();
  if (is_better_left(*kept, before.get()) || !make_arena_hold(*kept)) {
    state_.set_budget(before);
    kept->stay();
    return state_.place(/*exact=*/false);
  }
  kept->aim();  // again, because the limit may have changed while the run was waiting for memory
  kept->arrange();
  if (state_.arena_bytes() > state_.needed_arena_bytes()) state_.resize_arena(state_.needed_arena_bytes());
  state_.place(/*exact=*/false);
  moves_.note_done_before(static_cast<size_t>(step));
}

// Returns true if it is better to keep the present plan: the present arena fits the new limit too, and the moves left in the present plan
// have no more bytes than the change would move now.
bool RunBudget::is_better_left(const KeptValues& kept, const BudgetedPlan* before) const {
  if (!before || state_.needed_arena_bytes() < state_.arena_bytes()) return false;
  const auto sizes = state_.binding().buffer_sizes();
  size_t left = 0;
  for (size_t m = before->first_move[static_cast<size_t>(kept.step())]; m < before->moves.size(); ++m)
    left += sizes[before->moves[m].buffer];
  return left <= kept.bytes_to_move();
}

// Makes the arena large enough for the values' old and new offsets. @return false if there is too little memory
bool RunBudget::make_arena_hold(KeptValues& kept) {
  const size_t needed = state_.needed_arena_bytes(), held = state_.arena_bytes();
  if (state_.can_resize_arena()) {
    if (needed <= held) return true;
    const auto room = pass().admit_now(needed - held);
    return room && state_.resize_arena(needed);
  }
  if (copy_to_second_arena(kept)) return true;
  if (needed > held && !pass().admit_now(needed - held)) return false;
  replace_arena(kept);
  return true;
}

// For an arena that cannot be resized in place: allocates a second one. @return false if there is too little memory for both
bool RunBudget::copy_to_second_arena(KeptValues& kept) {
  const auto room = pass().admit_now(state_.needed_arena_bytes());
  if (!room) return false;
  std::shared_ptr<LargeBlock> before = state_.take_arena();
  try {
    state_.place(/*exact=*/is_capped_);
  } catch (const OutOfMemory&) {
    state_.give_arena(std::move(before));
    return false;
  }
  kept.copy_from(before->data());
  state_.drop_former(std::move(before));
  return true;
}

// Used if the arena cannot be resized and two arenas do not fit into memory: moves all values through the file. If other runs have taken
// the freed memory, allocates the new arena above the limit, because the run had this memory before.
void RunBudget::replace_arena(KeptValues& kept) {
  kept.write_all();
  state_.drop_arena();
  while (!pass().admit_now(state_.needed_arena_bytes()) && is_outdated()) choose_rest(kept);
  const AllocationScope room(context_in_nodes(control_.memory.pass), AllocationScope::current_class());
  state_.place(/*exact=*/is_capped_);
}

}  // namespace treadle::exec
