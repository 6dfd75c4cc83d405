#include "exec/run/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/trace/recorder.h"
#include "core/values/allocation.h"
#include "exec/memory/memory_pass.h"
#include "exec/memory/shortage.h"
#include "exec/program/parallel_plan.h"
#include "exec/run/parallel.h"
#include "exec/run/run_instruction.h"
#include "graph/op_def.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle::exec {

Frame::Frame(FramePool& frames)
    : program_(frames.plans().program()),
      state_(frames.plans()),
      feeds_(program_),
      outputs_(state_),
      nodes_(state_, control_, frames),
      budget_(state_, outputs_, control_, nodes_),
      cursor_(program_.instructions().size()) {}

Frame::~Frame() = default;

void Frame::start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
                  std::span<const OutputMemory> memory, std::span<const int64_t> parent_values) {
  control_ = control;
  control_.stop.check();  // needed because a program without instructions checks nowhere else
  cursor_.begin();
  nodes_.begin();
  feeds_.bind(feeds, parent_values, control_, state_);
  outputs_.begin(bound, memory, control.feeds.kept);
  try {
    find_memory();
  } catch (...) {
    if (program_.is_body()) throw;
    exec::rethrow_with_memory([&](const OutOfMemory&) {
      RunSnapshot now = state_.snapshot(control_);
      now.begun = false;
      return describe_memory(now);
    });
  }
  if (control_.feeds.later) find_starved();
  choose_schedule();
}

// Finds or allocates memory for the arena and the outputs.
void Frame::find_memory() {
  Plans& plans = state_.plans();
  if (state_.drop_lent_arena()) plans.note_kept_gradients();
  const bool limited = control_.memory.pass && control_.memory.pass->arena_capacity(0) != SIZE_MAX;
  state_.set_lodges(plans.lodges_gradients() && !limited && !outputs_.is_bound(program_.first_gradient()));
  std::unique_lock<std::mutex> room;  // keeps other runs from taking the memory until everything is allocated
  if (control_.memory.pass && !program_.is_body())
    room = budget_.begin();
  else
    budget_.begin_without_limit();
  if (!state_.is_placed()) state_.place(/*exact=*/budget_.is_capped());
  if (control_.memory.context && control_.memory.context->allocator && state_.has_arena())
    control_.memory.context->allocator->renew(state_.arena(), state_.arena_bytes());
  FeedBinder::point_at_feeds(state_);
  by_readiness_ = !state_.budget() && worth_parallel(program_, state_.binding(), control_);
  outputs_.place(control_, by_readiness_);
}

// Chooses how to run instructions: in the program's order, as soon as they are ready, or in the order of a budgeted plan.
void Frame::choose_schedule() {
  by_readiness_ &= !outputs_.needs_order();
  if (!by_readiness_) return;
  if (!parallel_) parallel_ = std::make_unique<ParallelState>(*program_.parallel());
  parallel_->begin(program_.instructions().size(), control_);
}

void Frame::find_starved() {
  cursor_.find_starved([&](size_t step) {
    const Instruction& instruction = program_.instructions()[budget_.instruction_at(step)];
    return FeedBinder::lacks_feed(state_, program_.operands(instruction).first(instruction.num_inputs));
  });
}

void Frame::feed(size_t input, const Datum& value) {
  feeds_.bind_later(program_.input_slots()[input], value, state_);
  find_starved();
}

void Frame::move_feed(size_t input, const Datum& value) {
  expect_yield(*this);
  FeedBinder::move(program_.input_slots()[input], value, state_);
}

// Returns true if a later step accesses the bytes of this slot, also through its views. @param written  true: only writes count
bool Frame::is_touched_later(SlotId root, bool written) const {
  const auto slots = program_.slots();
  for (size_t step = cursor_.next(); step < cursor_.end(); ++step) {
    const Instruction& instruction = program_.instructions()[budget_.instruction_at(step)];
    const auto operands = program_.operands(instruction).subspan(written ? instruction.num_inputs : 0);
    if (std::any_of(operands.begin(), operands.end(), [&](SlotId slot) { return slot != kNoSlot && slots[slot].root == root; }))
      return true;
  }
  return false;
}

bool Frame::has_output(size_t k) const {
  const auto slots = program_.slots();
  const SlotId root = slots[program_.output_slots()[k]].root;
  if (slots[root].location == LocationKind::feed) return state_.held(root).defined();
  return !is_touched_later(root, /*written=*/true);
}

Datum Frame::take_output(size_t k) {
  const auto slots = program_.slots();
  const auto outputs = program_.output_slots();
  auto root_of = [&](SlotId slot) { return slots[slot].root; };
  const SlotId root = root_of(outputs[k]);
  Datum value = output(k);
  const bool is_own = slots[root].location == LocationKind::held &&
                      std::count_if(outputs.begin(), outputs.end(), [&](SlotId slot) { return root_of(slot) == root; }) == 1 &&
                      !is_touched_later(root, /*written=*/false);
  if (is_own)
    state_.drop(root);
  else if (value.is_tensor())
    value = value.tensor().clone();
  return value;
}

void Frame::take_outputs(std::span<Datum> outputs) {
  check_at_end(program_, control_);
  if (control_.feeds.later) FeedBinder::check_complete(state_);
  const AllocationScope room(context_in_nodes(control_.memory.pass), AllocationScope::current_class());
  outputs_.hand_over(outputs);
}

size_t Frame::steps_left() const {
  return cursor_.steps_left([&](size_t step) { return program_.instructions()[id_at<InstructionId>(step)].is_yield; });
}

size_t Frame::steps_through(InstructionId instruction) const {
  for (size_t step = cursor_.next(); step < cursor_.end(); ++step)
    if (budget_.instruction_at(step) == instruction) return step + 1 - cursor_.next();
  return 0;
}

bool Frame::advance(size_t steps) {
  return cursor_.advance(steps, state_, [&](size_t end) {
    try {
      if (by_readiness_) advance_by_readiness(end);
      if (!by_readiness_) advance_in_order(end);
    } catch (...) {
      rethrow_with_memory();
    }
  });
}

// Adds a description of the run's memory to an out-of-memory error. @pre no work of the run is in progress
void Frame::rethrow_with_memory() const {
  exec::rethrow_with_memory([&](const OutOfMemory&) {
    RunSnapshot now = state_.snapshot(control_);
    now.step = cursor_.next();
    now.instruction = budget_.instruction_at(now.step);
    now.by_readiness = by_readiness_;
    if (by_readiness_ && parallel_->failed_at != kNoInstruction) {
      now.instruction = parallel_->failed_at;
      now.step = index_of(now.instruction);
    }
    return describe_memory(now);
  });
}

void Frame::advance_by_readiness(size_t end) {
  const std::vector<InstructionId>& yields = program_.parallel()->yields;
  if (const auto yield = std::lower_bound(yields.begin(), yields.end(), next_in_order()); yield != yields.end())
    end = std::min(end, index_of(*yield));
  const bool limited = control_.memory.pass && !program_.is_body();
  cursor_.go_to(run_parallel(nodes_, *parallel_, limited ? &budget_ : nullptr, cursor_.next(), end));
  if (cursor_.next() < end) by_readiness_ = false;  // the limit has changed, so the run continues in the order of a budgeted plan
}

void Frame::advance_in_order(size_t end) {
  const auto instructions = program_.instructions();
  const bool watched = control_.watched(), limited = control_.memory.pass && !program_.is_body();
  const bool renews = control_.memory.context && control_.memory.context->allocator && !state_.budget();
  sharing::Turn turn(control_.job, control_.recording.recorder, control_.recording.run, control_.stop.interruption());
  // If only times are recorded, one clock reading serves as the end of a step and the start of the next.
  NodeCountWriter counts(nodes_.counters());
  const bool only_timed =
      (control_.recording.recorder || nodes_.counters()) && !control_.observer && !control_.stop.deadline && !control_.stop.caller;
  RecordWriter writer(only_timed ? control_.recording.recorder : nullptr, control_.recording.run);
  PhaseMarks phases(program_);
  uint64_t boundary = 0;  // end time of the previous step; 0: not recorded, or other work came in between
  try {
    for (size_t step = cursor_.next(); step < end; cursor_.go_to(++step)) {
      const InstructionId id = limited ? budget_.instruction_at(step) : id_at<InstructionId>(step);
      const Instruction& instruction = instructions[id];
      if (instruction.is_yield) [[unlikely]] {
        if (limited) budget_.move_values(step, turn);
        return;
      }
      if (control_.observer) [[unlikely]]
        control_.stop.call([&] { control_.observer->ready(state_, instruction); });
      phases.enter(instruction.phase);
      nodes_.check_before(id);
      std::optional<LoopBreakScope> breaks;
      if (turn.has_duty()) [[unlikely]] {
        boundary = 0;
        nodes_.take_turn(id, turn, breaks);
      }
      if (limited) [[unlikely]] {
        boundary = 0;
        budget_.move_values(step, turn);
      }
      if (renews) [[unlikely]]
        nodes_.renew_buffers(id);
      if (nodes_.has_cache()) [[unlikely]]
        nodes_.execute_cached(instruction, evaluator_);
      else if (!watched) [[likely]]
        nodes_.execute(instruction, evaluator_);
      else if (only_timed && !instruction.dynamic) {
        const uint64_t start = boundary != 0 ? boundary : read_ticks();
        nodes_.execute(instruction, evaluator_);
        boundary = read_ticks();
        counts.add(index_of(id), boundary - start);
        writer.record(instruction.record_name, RecordKind::node, start, boundary);
      } else {
        boundary = 0;
        nodes_.execute_watched(instruction, evaluator_);
      }
      state_.release(instruction);
    }
  } catch (...) {
    nodes_.rethrow_from(instructions[limited ? budget_.instruction_at(cursor_.next()) : next_in_order()]);
  }
}

std::vector<Datum> Frame::yielded() {
  const Instruction& instruction = expect_yield(*this);
  std::vector<Datum> values;
  for (SlotId slot : program_.operands(instruction).first(instruction.num_inputs))
    values.push_back(slot == kNoSlot ? Datum() : state_.value(slot, /*shared=*/true));
  return values;
}

void Frame::resume(std::span<const Datum> values) {
  const Instruction& instruction = expect_yield(*this);
  const auto outputs = slots_handed_to(program_, instruction, values);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] == kNoSlot) continue;
    state_.hold(outputs[i], values[i].tensor().is_contiguous() ? values[i] : Datum(values[i].tensor().contiguous()));
  }
  if (by_readiness_)
    parallel_->cursor.finish(
        next_in_order(), [&](SlotId slot) { state_.drop(slot); }, [](InstructionId) {});
  else
    state_.release(instruction);
  cursor_.go_to(cursor_.next() + 1);
}

void Frame::clear() noexcept {
  state_.drop_all();
  outputs_.clear();
  nodes_.set_cache(nullptr);
}

FramePool::FramePool(Plans& plans) : plans_(plans) {
  for (const Instruction& instruction : plans.program().instructions())
    for (const auto& body : instruction.bodies) bodies_.emplace(body.get(), std::make_unique<FramePool>(plans.of_body(*body)));
}

FramePool::~FramePool() = default;

std::unique_ptr<Frame> FramePool::take() {
  return idle_.take([this] { return std::make_unique<Frame>(*this); });
}

void FramePool::trim_all() noexcept {
  trim();
  for (const auto& [body, pool] : bodies_) pool->trim_all();
}

void FramePool::run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound,
                    std::span<const OutputMemory> memory, std::span<const int64_t> parent_values) {
  std::unique_ptr<Frame> frame = take();
  struct Return {
    FramePool& pool;
    std::unique_ptr<Frame>& frame;
    ~Return() { pool.give_back(std::move(frame)); }
  } give_back{*this, frame};
  frame->start(feeds, bound, control, memory, parent_values);
  try {
    if (!frame->advance()) throw_stops_at_yield();
    frame->take_outputs(outputs);
  } catch (...) {
    frame->restore_feeds();
    throw;
  }
}

}  // namespace treadle::exec
