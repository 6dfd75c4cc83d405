#include "exec/placed/placed_run.h"

#include <algorithm>
#include <utility>

#include "exec/explain/run_shortage.h"
#include "exec/memory/shortage.h"
#include "exec/placed/describe_devices.h"
#include "exec/run/executor.h"
#include "treadle/error.h"

namespace treadle::exec {

PlacedRun::PlacedRun(PlacedSchedule& owner)
    : steps_(owner.steps()),
      program_(steps_.program()),
      state_(owner.plans()),
      feeds_(program_),
      outputs_(state_),
      nodes_(state_, control_, owner.frames()),
      cursor_(steps_.size()),
      streams_(steps_),
      memory_(owner.memory(), streams_, control_),
      io_(owner.crossings(), memory_, state_, control_),
      values_(memory_, streams_, state_, io_),
      bodies_(owner, memory_),
      work_(memory_, values_, io_, nodes_, bodies_, error_),
      issuing_(streams_, memory_, values_, work_, nodes_, error_) {}

// Waits for work that is still under way and uses the run's memory.
PlacedRun::~PlacedRun() { PlacedRun::clear(); }

void PlacedRun::clear() noexcept {
  error_.stop();
  streams_.wait_for_all(error_);
  memory_.end();
  values_.clear();
  io_.clear();
  work_.clear();
  nodes_.set_cache(nullptr);
  state_.drop_all();
  outputs_.clear();
  error_.reset(/*stopped=*/true);
}

void PlacedRun::start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
                      std::span<const OutputMemory> memory, std::span<const int64_t> parent_values) {
  clear();
  control_ = control;
  control_.stop.check();
  control_.memory.pass = nullptr;  // a MemoryPass limits only an arena on the host, which this run does not use
  control_.feeds.kept = true;      // feeds are still read while outputs are written
  control_.feeds.on_devices = true;
  nodes_.begin();
  work_.begin();
  values_.begin();
  cursor_.begin();
  try {
    bind(feeds, bound, memory, parent_values);
    try {
      memory_.begin(state_.binding());
    } catch (...) {
      rethrow_with_memory([&] { return describe_devices(memory_, values_, state_, control_, kNoInstruction); });
    }
  } catch (...) {
    clear();
    throw;
  }
  if (control_.feeds.later) find_starved();
  error_.reset();
}

// Rethrows the current exception. If memory has run out, adds a description of the memory that the run holds. In the run of a body, the
// surrounding run adds the description.
template <typename Describe>
void PlacedRun::rethrow_with_memory(Describe&& describe) {
  if (program_.is_body()) throw;
  exec::rethrow_with_memory([&](const OutOfMemory&) { return describe(); });
}

// Checks the feeds, finds the binding for their extents, and makes memory for the outputs on the host.
void PlacedRun::bind(std::span<const Datum> feeds, std::span<const Datum> bound, std::span<const OutputMemory> memory,
                     std::span<const int64_t> parent_values) {
  std::vector<Datum> taken;
  for (size_t i = 0; i < feeds.size(); ++i) taken.push_back(io_.take_feed(i, feeds[i]));
  std::vector<OutputMemory> beside_feeds(memory.begin(), memory.end());
  io_.choose_outputs(bound, beside_feeds);
  for (OutputMemory& output : beside_feeds) output.appends_to = output.grows_from = -1;  // any other output is copied to the host
  state_.set_uses_arena(control_.observer != nullptr);                                   // observers read values on the host
  feeds_.bind(taken, parent_values, control_, state_);
  outputs_.begin(bound, beside_feeds, control_.feeds.kept);
  try {
    if (!state_.is_placed()) state_.place(/*exact=*/false);
    FeedBinder::point_at_feeds(state_);
    outputs_.place(control_, /*by_readiness=*/false);
  } catch (...) {
    rethrow_with_memory([&] {
      RunSnapshot now = state_.snapshot(control_);
      now.begun = false;
      return describe_memory(now);
    });
  }
}

void PlacedRun::find_starved() {
  cursor_.find_starved([&](size_t position) {
    const StreamPlan::Step& step = step_at(position);
    if (step.is_copy()) return FeedBinder::lacks_feed(state_, std::span(&steps_.location(step.source).slot, 1));
    const Instruction& instruction = steps_.instruction(step);
    return FeedBinder::lacks_feed(state_, program_.operands(instruction).first(instruction.num_inputs));
  });
}

void PlacedRun::feed(size_t input, const Datum& value) {
  feeds_.bind_later(program_.input_slots()[input], io_.take_feed(input, value), state_);
  find_starved();
}

void PlacedRun::move_feed(size_t input, const Datum& value) {
  expect_yield(*this);
  FeedBinder::move(program_.input_slots()[input], DeviceIo::from_device(value), state_);
}

// An output on the host is complete if none of the remaining steps writes it.
bool PlacedRun::has_output(size_t k) const {
  const SlotId root = steps_.slot(program_.output_slots()[k]).root;
  if (steps_.slot(root).location == LocationKind::feed) return state_.held(root).defined();
  auto is_of_host = [&](LocationId at) {
    return at != kNoLocation && steps_.location(at).slot == root && steps_.location(at).device == DevicePlacement::kHost;
  };
  for (size_t position = cursor_.next(); position < cursor_.end(); ++position) {
    const StreamPlan::Step& later = step_at(position);
    const auto made = later.is_copy() ? std::span(&later.target, 1) : steps_.outputs(later);
    if (std::any_of(made.begin(), made.end(), is_of_host)) return false;
  }
  return true;
}

Datum PlacedRun::take_output(size_t k) {
  const Datum value = output(k);
  return value.is_tensor() ? Datum(value.tensor().clone()) : value;
}

void PlacedRun::take_outputs(std::span<Datum> outputs) {
  check_at_end(program_, control_);
  if (control_.feeds.later) FeedBinder::check_complete(state_);
  outputs_.hand_over(outputs);
}

size_t PlacedRun::steps_left() const {
  return cursor_.steps_left([&](size_t position) { return steps_.is_yield(steps_.at(position)); });
}

// Also counts the copies that bring the instruction's outputs to the host, if these are outputs of the run.
size_t PlacedRun::steps_through(InstructionId instruction) const {
  size_t end = cursor_.next();
  std::span<const LocationId> made;
  for (size_t position = cursor_.next(); position < cursor_.end(); ++position) {
    const StreamPlan::Step& step = step_at(position);
    const bool runs = step.instruction == instruction;
    if (runs) made = steps_.outputs(step);
    const bool hands_out = step.is_copy() && steps_.location(step.target).device == DevicePlacement::kHost &&
                           steps_.slot(steps_.location(step.target).slot).is_output &&
                           std::find(made.begin(), made.end(), step.source) != made.end();
    if (runs || hands_out) end = position + 1;
  }
  return end - cursor_.next();
}

bool PlacedRun::advance(size_t steps) {
  return cursor_.advance(steps, state_, [&](size_t end) {
    const Residency::GoingOn going_on(memory_.residency(), control_);
    issuing_.run(cursor_, std::min(end, cursor_.next() + steps_left()));
    rethrow();
  });
}

bool PlacedRun::issue_behind(const PlacedRun* earlier) {
  if (earlier) streams_.follow(earlier->streams_);
  return cursor_.advance(SIZE_MAX, state_, [&](size_t end) { issuing_.issue(cursor_, std::min(end, cursor_.next() + steps_left())); });
}

void PlacedRun::finish() {
  streams_.wait_for_all(error_);
  rethrow();
}

bool PlacedRun::takes_from_devices(std::span<const Datum> feeds) const {
  for (size_t i = 0; i < feeds.size(); ++i)
    if (feeds[i].is_tensor() && feeds[i].tensor().storage()->device() && !io_.takes_from_device(i, feeds[i].tensor())) return false;
  return true;
}

bool PlacedRun::hands_out_what_devices_copy() const {
  const bool host_is_at_once = steps_.device(DevicePlacement::kHost).calls_work_at_once();
  return std::ranges::any_of(program_.output_slots(), [&](SlotId slot) {
    const SlotId root = steps_.slot(slot).root;
    const Datum& value = state_.held(root);
    if (!value.is_tensor()) return value.defined() && !host_is_at_once;
    const bool is_on_device = value.tensor().storage()->device() != nullptr;
    if (steps_.slot(root).location == LocationKind::feed) return is_on_device;
    return !is_on_device && (!host_is_at_once || io_.crossings().is_copied_to_host[root] != 0);
  });
}

// Throws the first error of the steps done so far, if there is one.
void PlacedRun::rethrow() {
  const std::exception_ptr error = error_.take();
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (...) {
    rethrow_with_memory([&] { return describe_devices(memory_, values_, state_, control_, error_.at()); });
  }
}

const Instruction* PlacedRun::yield() const {
  return !finished() && steps_.is_yield(steps_.at(cursor_.next())) ? &steps_.instruction(step_at(cursor_.next())) : nullptr;
}

std::vector<Datum> PlacedRun::yielded() {
  const auto slots = program_.operands(expect_yield(*this));
  const auto at = steps_.inputs(step_at(cursor_.next()));
  std::vector<Datum> values;
  for (size_t k = 0; k < at.size(); ++k) {
    Datum value = slots[k] == kNoSlot ? Datum() : values_.value(at[k], slots[k]);
    if (value.is_tensor() && value.tensor().storage()->lent()) value = value.tensor().clone();
    values.push_back(std::move(value));
  }
  return values;
}

void PlacedRun::resume(std::span<const Datum> values) {
  const Instruction& instruction = expect_yield(*this);
  const StepId stopped = steps_.at(cursor_.next());
  const auto at = steps_.outputs(steps_[stopped]);
  const auto slots = slots_handed_to(program_, instruction, values);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == kNoSlot) continue;
    state_.put(slots[i], values[i].tensor().contiguous());  // put() checks the shape
    values_.hold(at[i], state_.value(slots[i], /*shared=*/false));
  }
  streams_.record_behind(stopped, /*host_waits=*/false);
  values_.let_go(stopped, streams_.at(steps_[stopped].stream));
  cursor_.go_to(cursor_.next() + 1);
}

}  // namespace treadle::exec
