#include "exec/run/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/allocation.h"
#include "core/recorder.h"
#include "exec/run/parallel.h"
#include "exec/run/run_instruction.h"
#include "exec/schedule/parallel_plan.h"
#include "graph/op_def.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle::exec {

Frame::Frame(const Program& program)
    : program_(program), state_(program), feeds_(program), outputs_(state_), budget_(state_, outputs_, control_) {}

Frame::~Frame() = default;

void Frame::start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
                  std::span<const OutputMemory> memory, std::span<const int64_t> parent_values) {
  control_ = control;
  pc_ = 0;
  committed_ = false;
  state_.take_binding(feeds_.bind(feeds, parent_values, control.takes_feeds_later, state_), control);
  outputs_.begin(bound, memory);
  std::unique_lock<std::mutex> room;  // nobody else takes it until everything is allocated
  if (control.pass && !program_.is_body())
    room = budget_.begin();
  else
    budget_.begin_without_limit();
  if (!state_.is_placed()) state_.place(/*exact=*/budget_.is_capped());
  if (control.memory && control.memory->allocator) control.memory->allocator->renew(state_.arena(), state_.arena_bytes());
  FeedBinder::point_at_feeds(state_);
  outputs_.place(control_);
  starved_ = SIZE_MAX;
  if (control_.takes_feeds_later) find_starved();
}

void Frame::find_starved() {
  auto is_starved = [&](const Instruction& instruction) {
    const auto inputs = program_.operands(instruction).first(instruction.num_inputs);
    return std::any_of(inputs.begin(), inputs.end(), [&](int32_t slot) {
      if (slot < 0) return false;
      const int32_t root = program_.slots()[static_cast<size_t>(slot)].root;
      return program_.slots()[static_cast<size_t>(root)].placement == Placement::feed && !state_.held(root).defined();
    });
  };
  starved_ = pc_;
  while (starved_ < program_.instructions().size() && !is_starved(program_.instructions()[budget_.instruction_at(starved_)])) ++starved_;
}

// The run has been told to go on where it cannot.
void Frame::refuse_starving() const {
  for (int32_t slot : program_.input_slots())
    if (!state_.held(slot).defined()) refuse_feed(program_, slot, {}, "the run has come to what reads it, and it has not been fed");
  throw Error(ErrorCode::internal, "a run that waits for an input, though all have been fed");
}

void Frame::feed(size_t input, const Datum& value) {
  feeds_.bind_later(program_.input_slots()[input], value, state_);
  find_starved();
}

bool Frame::has_output(size_t k) const {
  const auto slots = program_.slots();
  const int32_t root = slots[static_cast<size_t>(program_.output_slots()[k])].root;
  if (slots[static_cast<size_t>(root)].placement == Placement::feed) return state_.held(root).defined();
  for (size_t step = pc_; step < program_.instructions().size(); ++step) {
    const Instruction& instruction = program_.instructions()[budget_.instruction_at(step)];
    const auto outputs = program_.operands(instruction).subspan(instruction.num_inputs);
    if (std::any_of(outputs.begin(), outputs.end(),
                    [&](int32_t slot) { return slot >= 0 && slots[static_cast<size_t>(slot)].root == root; }))
      return false;
  }
  return true;
}

void Frame::take_outputs(std::span<Datum> outputs) {
  for (int32_t slot : program_.input_slots())
    if (control_.takes_feeds_later && !state_.held(slot).defined()) refuse_feed(program_, slot, {}, "it is missing");
  outputs_.hand_over(outputs);
}

// Operands of an instruction that is bound in the run, and of bodies.
class Frame::Operands final : public OperandSource {
 public:
  Operands(const Frame& frame, const Instruction& instruction) : frame_(frame), slots_(frame.program_.operands(instruction)) {}
  Datum operand(size_t input, bool kept) const override { return slots_[input] < 0 ? Datum() : frame_.state_.value(slots_[input], kept); }

 private:
  const Frame& frame_;
  std::span<const int32_t> slots_;
};

void Frame::execute_dynamic(const Instruction& instruction, Evaluator& evaluator) {
  evaluator.pool = control_.pool;
  evaluator.run_id = control_.run_id;
  evaluator.stop_requested = [control = &control_] { return control->stopping(); };
  std::vector<Datum> made = run_dynamic(program_, instruction, state_.binding(), control_, Operands(*this, instruction), evaluator);
  const auto slots = program_.operands(instruction).subspan(instruction.num_inputs);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) continue;
    if (!made[i].defined()) throw Error(ErrorCode::internal, fmt::format("output {} was not made", i));
    state_.hold(slots[i], std::move(made[i]));
  }
}

inline void Frame::execute(const Instruction& instruction, Evaluator& evaluator) {
  if (instruction.dynamic) [[unlikely]]
    return execute_dynamic(instruction, evaluator);
  run_static(instruction, state_.binding(), state_.pointers(instruction), state_.scratch(instruction), control_);
}

// Cancellation and deadline, but not between updates.
inline void Frame::check_before(size_t index) {
  if (index < program_.commit_from()) [[likely]]
    return control_.check();
  if (!committed_.exchange(true, std::memory_order_relaxed)) control_.commit();
}

// Of a node that is bound in the run only the run knows what it costs.
void Frame::record(const Instruction& instruction, uint64_t start, uint64_t end) const {
  Cost cost;
  if (instruction.dynamic && instruction.bodies.empty()) {
    std::vector<Datum> operands;
    for (int32_t slot : program_.operands(instruction)) operands.push_back(slot < 0 ? Datum() : value(slot));
    cost = cost_of(program_, instruction, operands);
  }
  control_.recorder->record(instruction.record_name, RecordKind::node, start, end, static_cast<int64_t>(cost.flops),
                            static_cast<int64_t>(cost.bytes));
}

void Frame::execute_watched(const Instruction& instruction, Evaluator& evaluator) {
  if (control_.observer) control_.call([&] { control_.observer->before(*this, instruction); });
  const UnderWay node(control_.caller, instruction.node);
  const uint64_t start = control_.recorder ? read_ticks() : 0;
  execute(instruction, evaluator);
  if (control_.recorder) record(instruction, start, read_ticks());
  if (control_.observer) control_.call([&] { control_.observer->after(*this, instruction); });
}

// For allocators that show what is read without having been written: of what the instruction is the first to touch, nothing is wanted.
void Frame::renew_buffers(size_t instruction) {
  const auto buffers = program_.buffers();  // in the order of their first instructions
  auto buffer = std::partition_point(buffers.begin(), buffers.end(),
                                     [&](const Program::BufferInfo& b) { return static_cast<size_t>(b.first) < instruction; });
  for (; buffer != buffers.end() && static_cast<size_t>(buffer->first) == instruction; ++buffer) {
    const auto b = static_cast<size_t>(buffer - buffers.begin());
    if (const size_t bytes = state_.binding().buffer_sizes()[b]; bytes > 0)
      control_.memory->allocator->renew(state_.arena() + state_.place_of(b), bytes);
  }
}

// A value of the cache in place of the computation, or the other way round.
void Frame::execute_cached(const Instruction& instruction) {
  auto entry = cache_->end();
  int32_t slot = -1;
  if (instruction.num_outputs == 1) {
    slot = program_.operands(instruction)[instruction.num_inputs];
    if (slot >= 0) entry = cache_->find(program_.name(slot));
  }
  if (entry == cache_->end()) return execute_watched(instruction, evaluator_);
  if (!entry->second.defined()) {
    execute_watched(instruction, evaluator_);
    Datum made = state_.value(slot, /*shared=*/true);
    entry->second = made.is_tensor() ? Datum(made.tensor().clone()) : made;
    return;
  }
  const Slot& info = program_.slots()[static_cast<size_t>(slot)];
  if (!info.static_shape || instruction.dynamic) return state_.hold(slot, entry->second);
  Tensor target = value(slot).tensor();
  if (!entry->second.is_tensor() || entry->second.tensor().dtype() != target.dtype() || entry->second.tensor().shape() != target.shape())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the cached value \"{}\" is {}, the node makes {}", entry->first, describe(entry->second), describe(target)));
  target.copy_from(entry->second.tensor());
}

size_t Frame::steps_left() const {
  const auto rest = program_.instructions().subspan(pc_);
  const auto stop = std::find_if(rest.begin(), rest.end(), [](const Instruction& instruction) { return instruction.is_yield; });
  return std::min(static_cast<size_t>(stop - rest.begin()), starved_ - pc_);
}

bool Frame::advance(size_t steps) {
  const auto instructions = program_.instructions();
  const bool watched = control_.watched(), limited = control_.pass && !program_.is_body();
  const bool renews = control_.memory && control_.memory->allocator && !state_.budget();
  if (pc_ == starved_ && pc_ < instructions.size() && steps > 0) refuse_starving();
  const size_t end = std::min(starved_, pc_ + std::min(steps, instructions.size() - pc_));
  sharing::Turn turn(control_.job, control_.recorder, control_.interruption());
  // Where nothing else watches, one reading of the clock is the end of a step and the begin of the next one, dispatch included.
  const bool only_recorded = control_.recorder && !control_.observer && !control_.deadline && !control_.caller;
  RecordWriter writer(only_recorded ? control_.recorder : nullptr);
  uint64_t boundary = 0;  // 0: the step before is not recorded, or something else lies between
  try {
    for (; pc_ < end; ++pc_) {
      const size_t index = limited ? budget_.instruction_at(pc_) : pc_;
      const Instruction& instruction = instructions[index];
      if (instruction.is_yield) [[unlikely]] {
        if (limited) budget_.move_values(pc_);
        return false;
      }
      if (control_.observer) [[unlikely]]
        control_.call([&] { control_.observer->ready(*this, instruction); });
      check_before(index);
      std::optional<LoopBreakScope> breaks;
      if (turn.has_duty()) [[unlikely]] {
        boundary = 0;
        turn.before_node(state_.binding().hint(index));
        if (!instruction.dynamic && !watched) breaks.emplace(turn.within_node());
      }
      if (limited) [[unlikely]] {
        boundary = 0;
        budget_.move_values(pc_);
      }
      if (renews) [[unlikely]]
        renew_buffers(index);
      if (cache_ && !cache_->empty()) [[unlikely]]
        execute_cached(instruction);
      else if (!watched) [[likely]]
        execute(instruction, evaluator_);
      else if (only_recorded && !instruction.dynamic) {
        const uint64_t start = boundary != 0 ? boundary : read_ticks();
        execute(instruction, evaluator_);
        boundary = read_ticks();
        writer.record(instruction.record_name, RecordKind::node, start, boundary);
      } else {
        boundary = 0;
        execute_watched(instruction, evaluator_);
      }
      state_.release(instruction);
    }
  } catch (...) {
    rethrow_from(instructions[limited ? budget_.instruction_at(pc_) : pc_]);
  }
  return finished();
}

void Frame::run_one(const Instruction& instruction, size_t index, Evaluator& evaluator, sharing::Turn& turn) {
  try {
    check_before(index);
    std::optional<LoopBreakScope> breaks;
    if (turn.has_duty()) [[unlikely]] {
      turn.before_node(state_.binding().hint(index));
      if (!instruction.dynamic && !control_.watched()) breaks.emplace(turn.within_node());
    }
    if (!instruction.dynamic && !control_.watched()) [[likely]] {
      execute(instruction, evaluator);
      return;
    }
    auto start = std::chrono::steady_clock::now();
    execute_watched(instruction, evaluator);
    if (!instruction.dynamic) return;
    auto elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
    std::atomic<uint32_t>& average = program_.measured_ns(index);
    auto before = static_cast<int64_t>(average.load(std::memory_order_relaxed));
    average.store(static_cast<uint32_t>(std::min<int64_t>((3 * before + elapsed) / 4, UINT32_MAX)), std::memory_order_relaxed);
  } catch (...) {
    rethrow_from(instruction);
  }
}

void Frame::rethrow_from(const Instruction& instruction) const {
  std::string operands;
  for (int i = 0; i < instruction.node->num_formal_inputs; ++i) {
    int32_t slot = program_.operands(instruction)[static_cast<size_t>(i)];
    if (slot < 0) continue;
    const Slot& info = program_.slots()[static_cast<size_t>(slot)];
    std::string type = info.static_shape ? std::string(short_name_of(info.dtype)) + to_string(state_.binding().shape(slot))
                                         : describe(state_.held(info.root));
    operands += (operands.empty() ? "" : ", ") + program_.name(slot) + " " + type;
  }
  exec::rethrow_from(instruction, "while running", operands);
}

std::vector<Datum> Frame::yielded() {
  const Instruction& instruction = expect_yield(*this);
  std::vector<Datum> values;
  for (int32_t slot : program_.operands(instruction).first(instruction.num_inputs))
    values.push_back(slot < 0 ? Datum() : state_.value(slot, /*shared=*/true));
  return values;
}

void Frame::resume(std::span<const Datum> values) {
  const Instruction& instruction = expect_yield(*this);
  const auto outputs = program_.operands(instruction).subspan(instruction.num_inputs);
  if (values.size() != outputs.size())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the Yield \"{}\" takes {} values back, got {}", instruction.node->name, outputs.size(), values.size()));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] < 0) continue;
    if (!values[i].is_tensor() || values[i].tensor().dtype() != program_.slots()[static_cast<size_t>(outputs[i])].dtype)
      refuse_feed(program_, outputs[i], values[i], "a value handed to a Yield has another type");
    state_.hold(outputs[i], values[i].tensor().contiguous());
  }
  state_.release(instruction);
  ++pc_;
}

void Frame::clear() noexcept {
  state_.drop_all();
  outputs_.clear();
  cache_.reset();
}

void run(const Program& program, std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control,
         std::span<const Datum> bound, std::span<const OutputMemory> memory, std::span<const int64_t> parent_values) {
  std::unique_ptr<Frame> frame = program.frames().take([&] { return std::make_unique<Frame>(program); });
  struct Return {
    const Program& program;
    std::unique_ptr<Frame>& frame;
    ~Return() { program.frames().give_back(std::move(frame)); }
  } give_back{program, frame};
  frame->start(feeds, bound, control, memory, parent_values);
  // A state may be made where the one before lies; nodes at once take it that no output shares bytes with an input.
  const bool in_place = std::any_of(memory.begin(), memory.end(), [](const OutputMemory& output) { return output.reusable; });
  try {
    if (!in_place && !frame->state().budget() && worth_parallel(program, frame->binding(), control))
      run_parallel(*frame);
    else if (!frame->advance())
      throw_stops_at_yield();
    frame->take_outputs(outputs);
  } catch (...) {
    frame->restore_feeds();
    throw;
  }
}

}  // namespace treadle::exec
