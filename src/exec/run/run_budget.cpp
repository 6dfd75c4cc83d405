#include "exec/run/run_budget.h"

#include <algorithm>
#include <cstring>

#include "core/allocation.h"
#include "core/checked.h"
#include "exec/memory/memory_pass.h"
#include "exec/plan/budget.h"
#include "exec/run/node_runner.h"
#include "exec/run/run_memory.h"
#include "memory/relocate.h"
#include "memory/spill_file.h"
#include "sharing/job_table.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {
namespace {

const BudgetedPlan::Stay* stay_at(const BudgetedPlan& plan, BufferId buffer, int32_t step) {
  for (const BudgetedPlan::Stay& stay : plan.stays[buffer])
    if (stay.first <= step && step <= stay.last) return &stay;
  return nullptr;
}

// Of the arena that the extents need, what runs may have if they can; SIZE_MAX: all of it.
size_t share_of_arena(const Binding& binding) {
  const double share = binding.program().planning().arena_share;
  if (share >= 1) return SIZE_MAX;
  return static_cast<size_t>(share * static_cast<double>(binding.budgets().own_arena_bytes())) / Storage::kAlignment * Storage::kAlignment;
}

}  // namespace

RunBudget::RunBudget(RunState& state, const OutputStore& outputs, const RunControl& control, NodeRunner& nodes)
    : state_(state), outputs_(outputs), control_(control), nodes_(nodes) {}

RunBudget::~RunBudget() = default;

std::unique_lock<std::mutex> RunBudget::begin() {
  moved_before_ = kNeverMoved;
  // The limit may become another one between the choice of a plan and its room: then the choice is made again.
  for (;;) {
    try {
      choose();
      return make_room();
    } catch (const OutOfMemory&) {
      if (!is_outdated()) throw;
    }
  }
}

void RunBudget::begin_without_limit() {
  capped_ = false;
  if (state_.budget()) state_.set_budget(nullptr);
}

bool RunBudget::is_outdated() const { return control_.memory.pass->generation() != limit_generation_; }

InstructionId RunBudget::instruction_at(size_t step) const {
  return state_.budget() ? state_.budget()->instruction_at(step) : id_at<InstructionId>(step);
}

size_t RunBudget::capacity_beside(size_t bytes) const {
  return std::min(share_of_arena(state_.binding()), control_.memory.pass->arena_capacity(bytes));
}

RunMemory RunBudget::memory_beside(bool at_once) const {
  const auto is_lent = [&](size_t input) {
    const Datum& feed = state_.held(state_.program().input_slots()[input]);
    return feed.is_tensor() && feed.tensor().storage()->lent();
  };
  return memory_beside_arena(state_.plans(), state_.binding(), control_, is_lent, at_once);
}

// Of a run that begins.
void RunBudget::choose() {
  limit_generation_ = control_.memory.pass->generation();
  const Program& program = state_.program();
  const Binding& binding = state_.binding();
  const size_t outputs = outputs_.bytes_to_allocate(), arena = rounded(binding.offsets().arena_bytes);
  std::shared_ptr<const BudgetedPlan> plan;
  // Where an output is bound to memory that a feed lies in, the planner knows which nodes may be meant by the bytes that they have; parts
  // of a feed it would not find.
  OrderChoice order{.free = control_.memory.pass->may_reorder() && outputs_.is_bound_to_whole_feeds(), .fixed = {}};
  order.binds_next_versions = outputs_.binds_next_versions();
  if (order.binds_next_versions) plan = binding.budgets().affordable();
  capped_ = capacity_beside(outputs) != SIZE_MAX;
  RunMemory beside;
  if (capped_) beside = memory_beside(/*at_once=*/program.parallel() != nullptr);
  later_bytes_ = beside.possible_bytes;
  if (plan && rounded(plan->arena_bytes) > capacity_beside(outputs + later_bytes_)) plan = nullptr;
  if (!plan && arena > capacity_beside(outputs + later_bytes_)) {
    if (capped_ && program.parallel()) beside = memory_beside(/*at_once=*/false);
    // Room for all that may come out in the run, or else for what surely does.
    for (size_t bytes : {beside.possible_bytes, beside.certain_bytes}) {
      later_bytes_ = bytes;
      const size_t limit = control_.memory.pass->arena_capacity(outputs + bytes);
      if (limit == 0 && bytes > beside.certain_bytes) continue;
      plan = binding.budgets().within(std::min(share_of_arena(binding), limit), order);
      if (rounded(plan->arena_bytes) <= limit) break;  // the share is kept where it can be
      if (bytes > beside.certain_bytes) continue;
      const size_t arena_bytes = rounded(plan->arena_bytes);
      state_.set_budget(std::move(plan));  // for who says what needs so much
      control_.memory.pass->refuse({.arena_bytes = arena_bytes,
                                    .output_bytes = outputs,
                                    .certain_bytes = beside.certain_bytes,
                                    .possible_bytes = beside.possible_bytes,
                                    .unbounded = beside.unbounded ? describe(*beside.unbounded) : std::string()});
    }
  }
  state_.set_budget(std::move(plan));
}

// Of a run whose limit has changed, in the order of its present plan: one for all of the run where that fits, as such plans are kept, or
// else one for the rest. Where the rest does not fit either, it goes on in the least that it can: the limit came after the run.
void RunBudget::choose_rest(int32_t step, std::span<const Kept> kept) {
  limit_generation_ = control_.memory.pass->generation();
  state_.set_lodges(false);  // what can be in the arena has its place there
  const Program& program = state_.program();
  const Binding& binding = state_.binding();
  const size_t outputs = outputs_.bytes_to_allocate();
  OrderChoice order;
  if (const auto& present = state_.budget()) order.fixed = present->order;
  order.binds_next_versions = outputs_.binds_next_versions();
  capped_ = capacity_beside(outputs) != SIZE_MAX;
  RunMemory beside;
  if (capped_) beside = memory_beside(/*at_once=*/program.parallel() != nullptr);
  later_bytes_ = beside.possible_bytes;
  // Offsets for the program's own order are of no use in another one.
  if (order.fixed.empty() && rounded(binding.offsets().arena_bytes) <= capacity_beside(outputs + later_bytes_))
    return state_.set_budget(nullptr);
  if (capped_ && program.parallel()) beside = memory_beside(/*at_once=*/false);
  std::shared_ptr<const BudgetedPlan> plan;
  for (size_t bytes : {beside.possible_bytes, beside.certain_bytes}) {
    later_bytes_ = bytes;
    const size_t capacity = capacity_beside(outputs + bytes);
    if (capacity == 0 && bytes > beside.certain_bytes) continue;
    plan = binding.budgets().within(capacity, order);
    if (rounded(plan->arena_bytes) <= control_.memory.pass->arena_capacity(outputs + bytes)) break;
    plan = nullptr;
  }
  if (!plan) {
    IdVector<BufferId, bool> is_away(program.num_buffers(), false);
    for (const Kept& value : kept) is_away[value.buffer] = value.from == RunState::kAway;
    plan = plan_rest(binding, capacity_beside(outputs + later_bytes_), order, step, is_away);
  }
  if (plan != state_.budget()) state_.set_budget(std::move(plan));
}

// For the arena and the outputs of a run that begins.
std::unique_lock<std::mutex> RunBudget::make_room() {
  if (!capped_) return control_.memory.pass->admit(0, 0, control_.stop.interruption(), [] { return size_t{0}; });
  const size_t arena = rounded(state_.needed_arena_bytes());
  const bool again = state_.has_arena() && rounded(state_.arena_bytes()) == arena;
  if (!again) state_.drop_arena();
  const auto let_go = [&] {
    state_.drop_arena();
    return again ? arena : 0;
  };
  return control_.memory.pass->admit((again ? 0 : arena) + outputs_.bytes_to_allocate(), later_bytes_, control_.stop.interruption(),
                                     let_go);
}

void RunBudget::move_values(size_t step, sharing::Turn& turn) {
  if (is_outdated()) follow_limit(static_cast<int32_t>(step));
  if (!state_.budget() || moved_before_ == step) return;
  moved_before_ = step;
  const BudgetedPlan& plan = *state_.budget();
  for (uint32_t m = plan.first_move[step]; m < plan.first_move[step + 1]; ++m) {
    const BudgetedPlan::Move& move = plan.moves[m];
    const BufferId buffer = move.buffer;
    const size_t size = state_.binding().buffer_sizes()[buffer];
    switch (move.kind) {
      case BudgetedPlan::Kind::spill: write_out(plan.file_offsets[buffer], move.offset, size); break;
      case BudgetedPlan::Kind::load: read_back(plan.file_offsets[buffer], move.offset, size); break;
      case BudgetedPlan::Kind::recompute: recompute(plan, move.first_replay, move.num_replays, turn); break;
    }
    state_.set_place(buffer, move.kind == BudgetedPlan::Kind::spill ? RunState::kAway : move.offset);
  }
}

// Between the arena and the spill file, timed for the report.
void RunBudget::write_out(size_t file_offset, size_t offset, size_t size_bytes) {
  write_out(file_offset, state_.arena() + offset, size_bytes);
}

void RunBudget::write_out(size_t file_offset, const std::byte* data, size_t size_bytes) {
  if (!spill_file_) spill_file_ = std::make_unique<memory::SpillFile>(control_.memory.pass->spill_folder());
  const uint64_t start = sharing::now_ns();
  spill_file_->write(file_offset, data, size_bytes);
  control_.memory.pass->moved(size_bytes, sharing::now_ns() - start);
}

void RunBudget::read_back(size_t file_offset, size_t offset, size_t size_bytes) {
  const uint64_t start = sharing::now_ns();
  spill_file_->read(file_offset, state_.arena() + offset, size_bytes);
  control_.memory.pass->moved(size_bytes, sharing::now_ns() - start);
}

void RunBudget::recompute(const BudgetedPlan& plan, size_t first, size_t count, sharing::Turn& turn) {
  for (size_t r = first; r < first + count; ++r) {
    const BudgetedPlan::Replay& replay = plan.replays[r];
    const Instruction& instruction = state_.program().instructions()[replay.instruction];
    const size_t operands = static_cast<size_t>(instruction.num_inputs) + instruction.num_outputs;
    replay_pointers_.resize(std::max(replay_pointers_.size(), operands));
    for (size_t k = 0; k < operands; ++k) {
      const size_t offset = plan.replay_offsets[replay.first_offset + k];
      replay_pointers_[k] = offset == BudgetedPlan::kNowhere ? state_.pointers(instruction)[k] : state_.arena() + offset;
    }
    nodes_.run_again(instruction, replay_pointers_.data(), state_.arena() + replay.scratch_offset, turn);
  }
}

// @param plan  null: the program's own order, in which nothing moves.
bool RunBudget::is_needed(const BudgetedPlan* plan, BufferId buffer, int32_t step) const {
  const BufferInfo& info = state_.program().buffers()[buffer];
  const bool alive = plan ? plan->is_alive_around(buffer, step) : info.first < InstructionId{step} && InstructionId{step} <= info.last;
  return alive && state_.binding().buffer_sizes()[buffer] > 0;
}

// True if the value, which is away at the step, will be made anew, or could have been: nobody has written it to the file.
bool RunBudget::is_away_without_copy(const BudgetedPlan& plan, BufferId buffer, int32_t step) {
  int32_t left = -1;
  for (const BudgetedPlan::Stay& stay : plan.stays[buffer])
    if (stay.last < step) left = std::max(left, stay.last);
  const auto& drops = plan.drops[buffer];
  return std::find(drops.begin(), drops.end(), left) != drops.end();
}

// True if the plan finds it in the file once it is at the step: a plan of the whole run may have written it before that.
bool RunBudget::is_loaded_later(const BudgetedPlan& plan, BufferId buffer, int32_t step) {
  for (size_t m = plan.first_move[static_cast<size_t>(step) + 1]; m < plan.moves.size(); ++m) {
    if (plan.moves[m].buffer != buffer || plan.moves[m].kind == BudgetedPlan::Kind::recompute) continue;
    return plan.moves[m].kind == BudgetedPlan::Kind::load;
  }
  return false;
}

// Where everything is that is needed at the step or later.
// @return false if a value is nowhere at the moment, because it is to be made anew.
bool RunBudget::find_kept(int32_t step, std::vector<Kept>& kept) const {
  const BudgetedPlan* plan = state_.budget().get();
  const bool moved = moved_before_ == static_cast<size_t>(step);  // the plan's moves before the step have been done
  for (BufferId b : state_.program().buffers().ids()) {
    if (!is_needed(plan, b, step)) continue;
    const bool stays = !plan || stay_at(*plan, b, moved ? step : step - 1);
    if (!stays && is_away_without_copy(*plan, b, step)) return false;
    kept.push_back({b, stays ? state_.place_of(b) : RunState::kAway});
  }
  return true;
}

// The limit is another one: what is still needed takes the places of the new plan. That costs a copy in memory at most, and of what has no
// place there one to the file. The arena grows only where there is room at once and it pays, as the run can go on in it as it is; nor does
// anything change while a value that is to be made anew is nowhere.
void RunBudget::follow_limit(int32_t step) {
  const auto before = state_.budget();
  std::vector<Kept> kept;
  if (!find_kept(step, kept)) return;
  choose_rest(step, kept);
  if (before == state_.budget()) return;
  const auto any_plan = state_.budget() ? state_.budget() : before;
  aim(step, kept);
  if (is_better_left(kept, before.get(), step) || !make_arena_hold(step, kept, *any_plan)) {
    state_.set_budget(before);
    for (const Kept& value : kept)
      if (before) state_.set_place(value.buffer, value.from);
    return state_.place(/*exact=*/false);
  }
  aim(step, kept);  // the limit may have changed again while the run waited for room
  arrange(kept, *any_plan);
  for (const Kept& value : kept)
    if (state_.budget()) state_.set_place(value.buffer, value.to);
  moved_before_ = static_cast<size_t>(step);
}

// Where the values lie at the step by the plan that is chosen.
void RunBudget::aim(int32_t step, std::vector<Kept>& kept) const {
  const BudgetedPlan* plan = state_.budget().get();
  for (Kept& value : kept) {
    const BudgetedPlan::Stay* stay = plan ? stay_at(*plan, value.buffer, step) : nullptr;
    value.to = !plan ? state_.place_of(value.buffer) : stay ? stay->offset : RunState::kAway;
    value.is_wanted = plan && is_loaded_later(*plan, value.buffer, step);
  }
}

// In an arena that the new limit holds as well: what the plan has yet to move is less than what another one would have to move now.
bool RunBudget::is_better_left(const std::vector<Kept>& kept, const BudgetedPlan* before, int32_t step) const {
  if (!before || state_.needed_arena_bytes() < state_.arena_bytes()) return false;
  const auto sizes = state_.binding().buffer_sizes();
  size_t to_move = 0, left = 0;
  for (const Kept& value : kept)
    if (value.from != value.to) to_move += size_of(value);
  for (size_t m = before->first_move[static_cast<size_t>(step)]; m < before->moves.size(); ++m) left += sizes[before->moves[m].buffer];
  return left <= to_move;
}

// Room for old and new places. Of an arena that cannot be resized, what it holds comes to a second one, or to the file where there is no
// room for both.
// @return false if there is none for a larger one.
bool RunBudget::make_arena_hold(int32_t step, std::vector<Kept>& kept, const BudgetedPlan& any_plan) {
  const size_t needed = state_.needed_arena_bytes(), held = state_.arena_bytes();
  if (state_.can_resize_arena()) {
    if (needed <= held) return true;
    const auto room = control_.memory.pass->admit_now(needed - held);
    return room && state_.resize_arena(needed);
  }
  if (copy_to_second_arena(kept, any_plan)) return true;
  if (needed > held && !control_.memory.pass->admit_now(needed - held)) return false;
  for (Kept& value : kept) {
    if (value.from == RunState::kAway) continue;
    write_out(any_plan.file_offsets[value.buffer], value.from, size_of(value));
    value.from = RunState::kAway;
  }
  state_.drop_arena();
  while (!control_.memory.pass->admit_now(state_.needed_arena_bytes()) && is_outdated()) choose_rest(step, kept);
  // The run had as much before: where others have taken it meanwhile, it goes on all the same.
  const AllocationScope room(context_in_nodes(control_.memory.pass), AllocationScope::current_class());
  state_.place(/*exact=*/capped_);
  return true;
}

bool RunBudget::copy_to_second_arena(std::vector<Kept>& kept, const BudgetedPlan& any_plan) {
  const auto room = control_.memory.pass->admit_now(state_.needed_arena_bytes());
  if (!room) return false;
  std::shared_ptr<LargeBlock> before = state_.take_arena();
  try {
    state_.place(/*exact=*/capped_);
  } catch (const OutOfMemory&) {
    state_.give_arena(std::move(before));
    return false;
  }
  const uint64_t start = sharing::now_ns();
  size_t bytes = 0;
  for (Kept& value : kept) {
    if (value.from == RunState::kAway) continue;
    if (value.to != RunState::kAway) {
      std::memcpy(state_.arena() + value.to, before->data() + value.from, size_of(value));
      bytes += size_of(value);
    } else if (value.is_wanted) {
      write_out(any_plan.file_offsets[value.buffer], before->data() + value.from, size_of(value));
    }
    value.from = value.to;
  }
  control_.memory.pass->moved(bytes, sharing::now_ns() - start);
  state_.drop_former(std::move(before));
  return true;
}

// From the old places to the new ones, in an arena that has both.
void RunBudget::arrange(const std::vector<Kept>& kept, const BudgetedPlan& any_plan) {
  std::vector<memory::Relocation> moves;
  std::vector<size_t> file_offsets;
  size_t bytes = 0;
  for (const Kept& value : kept) {
    const size_t in_file = any_plan.file_offsets[value.buffer];
    if (value.from == RunState::kAway) continue;
    if (value.is_wanted) write_out(in_file, value.from, size_of(value));
    if (value.to == RunState::kAway) continue;
    moves.push_back({value.from, value.to, size_of(value)});
    file_offsets.push_back(in_file);
    if (value.from != value.to) bytes += size_of(value);
  }
  const uint64_t start = sharing::now_ns();
  memory::relocate(state_.arena(), state_.arena_bytes(), moves,
                   {[&](size_t i, size_t offset) { write_out(file_offsets[i], offset, moves[i].size_bytes); },
                    [&](size_t i, size_t offset) { read_back(file_offsets[i], offset, moves[i].size_bytes); }});
  if (bytes > 0) control_.memory.pass->moved(bytes, sharing::now_ns() - start);
  for (const Kept& value : kept)
    if (value.from == RunState::kAway && value.to != RunState::kAway)
      read_back(any_plan.file_offsets[value.buffer], value.to, size_of(value));
  if (state_.arena_bytes() > state_.needed_arena_bytes()) state_.resize_arena(state_.needed_arena_bytes());
  state_.place(/*exact=*/false);
}

size_t RunBudget::size_of(const Kept& value) const { return state_.binding().buffer_sizes()[value.buffer]; }

}  // namespace treadle::exec
