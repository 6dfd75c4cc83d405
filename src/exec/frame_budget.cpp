// What a frame does to keep to a session's memory limit.
#include <algorithm>

#include "core/checked.h"
#include "exec/budget.h"
#include "exec/frame.h"
#include "exec/run_instruction.h"
#include "exec/run_memory.h"
#include "memory/spill_file.h"
#include "sharing/job_table.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

const BudgetedPlan::Stay* stay_at(const BudgetedPlan& plan, size_t buffer, int32_t step) {
  for (const BudgetedPlan::Stay& stay : plan.stays[buffer])
    if (stay.first <= step && step <= stay.last) return &stay;
  return nullptr;
}

size_t rounded(size_t bytes) { return align_up(std::max<size_t>(bytes, 1), Storage::kAlignment); }

}  // namespace

// Of the outputs that the run makes room for itself.
size_t Frame::output_bytes() const {
  size_t bytes = 0;
  const auto outputs = program_.output_slots();
  for (int32_t slot : program_.preallocated()) {
    bool is_bound = false;
    for (size_t k = 0; k < bound_.size(); ++k)
      is_bound |= bound_[k].defined() && program_.slots()[static_cast<size_t>(outputs[k])].root == slot;
    const DType dtype = program_.slots()[static_cast<size_t>(slot)].dtype;
    if (!is_bound) bytes += align_up(std::max<size_t>(size_bytes(dtype, binding_->shape(slot).num_elements()), 1), Storage::kAlignment);
  }
  return bytes;
}

size_t Frame::index_at(size_t step) const { return budget_ ? budget_->instruction_at(step) : step; }

// Where an output is bound to memory that a feed lies in, the planner knows which nodes may be meant by the bytes that they have; parts of
// a feed it would not find.
bool Frame::may_reorder() const {
  if (!control_.pass->may_reorder()) return false;
  const auto inputs = program_.input_slots();
  return std::all_of(bound_.begin(), bound_.end(), [&](const Datum& bound) {
    if (!bound.is_tensor() || !is_fed(bound.tensor())) return true;
    const Tensor& memory = bound.tensor();
    return std::any_of(inputs.begin(), inputs.end(), [&](int32_t slot) {
      const Datum& feed = held_[static_cast<size_t>(slot)];
      return feed.is_tensor() && feed.tensor().raw() == memory.raw() && feed.tensor().size_bytes() == memory.size_bytes();
    });
  });
}

// @param begins  false: some nodes have run already, in the order of the present plan.
void Frame::choose_budget(bool begins) {
  limit_generation_ = control_.pass->generation();
  const size_t outputs = output_bytes(), arena = rounded(binding_->offsets().arena_bytes);
  const auto is_lent = [&](size_t input) {
    const Datum& feed = held_[static_cast<size_t>(program_.input_slots()[input])];
    return feed.is_tensor() && feed.tensor().storage()->lent();
  };
  std::shared_ptr<const BudgetedPlan> plan;
  capped_ = control_.pass->arena_capacity(outputs) != SIZE_MAX;
  RunMemory beside;
  if (capped_) beside = memory_beside_arena(*binding_, control_, is_lent, /*at_once=*/program_.parallel() != nullptr);
  later_bytes_ = beside.possible_bytes;
  OrderChoice order{.free = begins && may_reorder(), .fixed = {}};
  if (!begins && budget_) order.fixed = budget_->order;
  // Offsets for the program's own order are of no use in another one.
  if (arena > control_.pass->arena_capacity(outputs + later_bytes_) || !order.fixed.empty()) {
    if (capped_ && program_.parallel()) beside = memory_beside_arena(*binding_, control_, is_lent, /*at_once=*/false);
    // Room for all that may come out in the run, or else for what surely does.
    for (size_t bytes : {beside.possible_bytes, beside.certain_bytes}) {
      later_bytes_ = bytes;
      const size_t capacity = control_.pass->arena_capacity(outputs + bytes);
      if (capacity == 0 && bytes > beside.certain_bytes) continue;
      plan = binding_->budgeted(capacity, order);
      if (rounded(plan->arena_bytes) <= capacity) break;
      if (bytes == beside.certain_bytes) control_.pass->refuse(rounded(plan->arena_bytes), outputs, beside);
    }
  }
  if (plan != budget_) generation_ = 0;
  budget_ = std::move(plan);
  if (!budget_) return;
  where_.assign(program_.num_buffers(), kAway);
  for (size_t b = 0; b < where_.size(); ++b)
    if (!budget_->stays[b].empty()) where_[b] = budget_->stays[b].front().offset;
}

// For the arena and the outputs of a run that begins.
std::unique_lock<std::mutex> Frame::make_room() {
  if (!capped_) return control_.pass->admit(0, 0, control_);
  const size_t arena = rounded(budget_ ? budget_->arena_bytes : binding_->offsets().arena_bytes);
  const bool again = arena_ && rounded(arena_->size_bytes()) == arena;
  if (!again) trim();
  return control_.pass->admit((again ? 0 : arena) + output_bytes(), later_bytes_, control_);
}

void Frame::trim() noexcept {
  arena_.reset();
  generation_ = 0;  // of pointers into it
}

// Before every node of a session with a limit.
void Frame::move_values() {
  const bool switched = limit_generation_ != control_.pass->generation() && follow_limit();
  if (!budget_ || moved_before_ == pc_) return;
  moved_before_ = pc_;
  const BudgetedPlan& plan = *budget_;
  for (uint32_t m = plan.first_move[pc_]; m < plan.first_move[pc_ + 1]; ++m) {
    const BudgetedPlan::Move& move = plan.moves[m];
    const auto buffer = static_cast<size_t>(move.buffer);
    const size_t size = binding_->buffer_sizes()[buffer];
    if (move.kind != BudgetedPlan::Kind::recompute && !spill_file_)
      spill_file_ = std::make_unique<memory::SpillFile>(control_.pass->spill_folder());
    switch (move.kind) {
      case BudgetedPlan::Kind::spill:
        if (!switched)  // else everything is in the file already
          write_out(plan.file_offsets[buffer], move.offset, size);
        break;
      case BudgetedPlan::Kind::load: read_back(plan.file_offsets[buffer], move.offset, size); break;
      case BudgetedPlan::Kind::recompute: recompute(plan, move.first_replay, move.num_replays); break;
    }
    where_[buffer] = move.kind == BudgetedPlan::Kind::spill ? kAway : move.offset;
  }
}

// Between the arena and the spill file, timed for the report.
void Frame::write_out(size_t file_offset, size_t offset, size_t size_bytes) {
  const uint64_t start = sharing::now_ns();
  spill_file_->write(file_offset, arena_->data() + offset, size_bytes);
  control_.pass->moved(size_bytes, sharing::now_ns() - start);
}

void Frame::read_back(size_t file_offset, size_t offset, size_t size_bytes) {
  const uint64_t start = sharing::now_ns();
  spill_file_->read(file_offset, arena_->data() + offset, size_bytes);
  control_.pass->moved(size_bytes, sharing::now_ns() - start);
}

void Frame::recompute(const BudgetedPlan& plan, size_t first, size_t count) {
  for (size_t r = first; r < first + count; ++r) {
    const BudgetedPlan::Replay& replay = plan.replays[r];
    const Instruction& instruction = program_.instructions()[static_cast<size_t>(replay.instruction)];
    const size_t operands = static_cast<size_t>(instruction.num_inputs) + instruction.num_outputs;
    replay_pointers_.resize(std::max(replay_pointers_.size(), operands));
    for (size_t k = 0; k < operands; ++k) {
      const size_t offset = plan.replay_offsets[replay.first_offset + k];
      replay_pointers_[k] = offset == BudgetedPlan::kNowhere ? pointers_[instruction.first_operand + k] : arena_->data() + offset;
    }
    run_static(instruction, *binding_, replay_pointers_.data(), arena_->data() + replay.scratch_offset, control_);
  }
}

// The limit may become another one between the choice of a plan and its room: then the choice is made again.
template <typename Admit>
std::unique_lock<std::mutex> Frame::room_for_budget(bool begins, Admit&& admit) {
  for (;;) {
    try {
      return admit();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::resource_exhausted || control_.pass->generation() == limit_generation_) throw;
    }
    choose_budget(begins);
  }
}

std::unique_lock<std::mutex> Frame::begin_within_limit() {
  choose_budget(/*begins=*/true);
  return room_for_budget(/*begins=*/true, [&] { return make_room(); });
}

// True between two stays, if the value is to be made anew.
bool Frame::is_away_without_copy(size_t buffer) const {
  const auto step = static_cast<int32_t>(pc_);
  if (stay_at(*budget_, buffer, step - 1)) return false;  // it leaves now, or stays
  int32_t left = -1;
  for (const BudgetedPlan::Stay& stay : budget_->stays[buffer])
    if (stay.last < step) left = std::max(left, stay.last);
  const auto& drops = budget_->drops[buffer];
  return std::find(drops.begin(), drops.end(), left) != drops.end();
}

// The limit is another one: everything that is still needed goes through the file into an arena of the new plan. A value that is to be made
// anew is nowhere at the moment; then the run goes on as it is until the next node.
// @return whether the plan changed.
bool Frame::follow_limit() {
  const auto step = static_cast<int32_t>(pc_);
  const auto buffers = program_.buffers();
  const auto before = budget_;
  auto is_needed = [&](size_t b) {
    const bool alive = before ? before->is_alive_around(b, step) : buffers[b].first < step && step <= buffers[b].last;
    return alive && binding_->buffer_sizes()[b] > 0;
  };
  if (budget_)
    for (size_t b = 0; b < buffers.size(); ++b)
      if (is_needed(b) && is_away_without_copy(b)) return false;
  const std::vector<size_t> places = where_;
  const uint64_t generation = generation_;
  choose_budget(/*begins=*/false);
  if (before == budget_) {
    where_ = places;
    generation_ = generation;
    return false;
  }
  if (!spill_file_) spill_file_ = std::make_unique<memory::SpillFile>(control_.pass->spill_folder());
  const auto any_plan = budget_ ? budget_ : before;
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (!is_needed(b)) continue;
    const size_t offset = before ? places[b] : binding_->offsets().offsets[b];
    if (offset != kAway && (!before || stay_at(*before, b, step - 1)))
      write_out(any_plan->file_offsets[b], offset, binding_->buffer_sizes()[b]);
  }
  trim();
  {
    auto room = room_for_budget(/*begins=*/false, [&] {
      return control_.pass->admit(budget_ ? budget_->arena_bytes : binding_->offsets().arena_bytes, 0, control_);
    });
    ready_pointers();
  }
  // Pointers to feeds and held values, which are not in the arena.
  for (size_t s = 0; s < held_.size(); ++s)
    if (held_[s].is_tensor()) point_at(static_cast<int32_t>(s), held_[s].tensor());
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (!is_needed(b)) continue;
    size_t offset = binding_->offsets().offsets[b];
    if (budget_) {
      const BudgetedPlan::Stay* stay = stay_at(*budget_, b, step);
      where_[b] = stay ? stay->offset : kAway;
      if (!stay) continue;  // comes back when the plan says so
      offset = stay->offset;
    }
    read_back(any_plan->file_offsets[b], offset, binding_->buffer_sizes()[b]);
  }
  moved_before_ = kNeverMoved;
  return true;
}

}  // namespace treadle::exec
