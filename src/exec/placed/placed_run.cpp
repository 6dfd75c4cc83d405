#include "exec/placed/placed_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/allocation.h"
#include "core/float_mode.h"
#include "core/recorder.h"
#include "core/thread_pool.h"
#include "exec/memory/shortage.h"
#include "exec/run/run_instruction.h"
#include "graph/op_def.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle::exec {

using Memory = StreamPlan::Location::Memory;

namespace {

// Operands that have been looked up at issue.
class GivenOperands final : public OperandSource {
 public:
  explicit GivenOperands(std::span<const Datum> values) : values_(values) {}
  Datum operand(size_t input, bool kept) const override {
    const Datum& value = values_[input];
    return kept && value.is_tensor() && value.tensor().storage()->lent() ? Datum(value.tensor().clone()) : value;
  }

 private:
  std::span<const Datum> values_;
};

}  // namespace

PlacedRun::PlacedRun(PlacedProgram& owner)
    : owner_(owner),
      program_(owner.program()),
      plan_(owner.plan()),
      state_(owner.plans()),
      binder_(program_),
      outputs_(state_),
      events_(plan_.steps.size()),
      arenas_(owner.devices().size()),
      planned_(plan_.locations.size()),
      places_(plan_.locations.size()) {
  evaluator_.stop_requested = [this] { return failed_.load() || control_.stopping(); };
  for (LocationId l : plan_.locations.ids())
    if (plan_.locations[l].memory == Memory::planned) arenas_[static_cast<size_t>(plan_.locations[l].device)].locations.push_back(l);
  static constexpr const char* kNames[] = {"compute", "copy-in", "copy-out"};
  for (size_t s = 0; s < plan_.streams.size(); ++s) {
    Device& on = device(plan_.streams[s].device);
    streams_.push_back(on.create_stream(fmt::format("{} {} {}", on.name(), kNames[static_cast<size_t>(plan_.streams[s].queue)], s)));
  }
  for (StepId s : plan_.steps.ids())
    if (plan_.steps[s].records) events_[s] = device(device_of(plan_.steps[s])).create_event();
  for (const std::vector<StepId>& bulk : plan_.bulks) {
    order_.insert(order_.end(), bulk.begin(), bulk.end());
    bulk_ends_.resize(order_.size(), order_.size());
  }
  if (owner_.keeps_limits()) become_resident();
}

// Work that is still under way uses the run's memory.
PlacedRun::~PlacedRun() { PlacedRun::clear(); }

void PlacedRun::clear() noexcept {
  failed_ = true;
  wait_for_all();
  for (const auto& residency : residencies_)
    if (residency) residency->end();
  for (Place& place : places_) place = {};
  feeds_.clear();
  watches_.clear();
  staying_.clear();
  blocks_.clear();
  made_.clear();
  cache_.reset();
  if (program_.parameters() && residencies_.empty()) constants_.reset();  // of a version that may be outdated
  state_.drop_all();
  outputs_.clear();
  error_ = nullptr;
  failed_at_ = nullptr;
}

void PlacedRun::start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
                      std::span<const OutputMemory> memory) {
  clear();
  control_ = control;
  control_.check();
  control_.pass = nullptr;      // of the host's arena
  control_.keeps_feeds = true;  // they are read while outputs arrive
  control_.takes_device_feeds = true;
  if (control_.counts_nodes && !counters_) counters_ = &owner_.plans().counters().make(program_.instructions().size());
  evaluator_.pool = control_.pool;
  evaluator_.run_id = control_.run_id;
  std::vector<OutputMemory> beside_feeds(memory.begin(), memory.end());
  for (OutputMemory& output : beside_feeds) output.appends_to = output.grows_from = -1;
  next_ = 0;
  for (LocationId l : places_.ids()) places_[l].steps_left = plan_.locations[l].num_steps;
  try {
    std::vector<Datum> taken;
    for (size_t i = 0; i < feeds.size(); ++i) taken.push_back(taken_feed(i, feeds[i]));
    choose_staying(bound, beside_feeds);
    begin_on_host(taken, bound, beside_feeds);
    try {
      find_memory();
      renew_arenas();
    } catch (...) {
      rethrow_with_memory([&](const OutOfMemory&) { return describe_memory(nullptr); });
    }
  } catch (...) {
    clear();
    throw;
  }
  for (size_t i = 0; i < feeds.size(); ++i)
    if (feeds[i].defined()) feeds_[program_.input_slots()[i]] = state_.value(program_.input_slots()[i], /*shared=*/false);
  starved_ = SIZE_MAX;
  if (control_.takes_feeds_later) find_starved();
  failed_ = false;
}

size_t PlacedRun::steps_left() const {
  size_t end = next_;
  while (end < std::min(starved_, order_.size()) && !is_yield(end)) ++end;
  return end - next_;
}

bool PlacedRun::goes_one_by_one(const sharing::Turn& turn) const {
  return turn.has_duty() || control_.observer || !residencies_.empty() || (cache_ && !cache_->empty());
}

bool PlacedRun::advance(size_t steps) {
  if (next_ == starved_ && !finished() && steps > 0) {
    if (std::exchange(is_told_, true)) FeedBinder::refuse_missing(state_);
    return false;
  }
  const size_t stop = next_ + std::min(steps, steps_left());
  std::optional<Governor::Exclusive> of_session;
  if (DeviceMemory& memory = *owner_.memory(); memory.has_limit && !residencies_.empty())
    of_session.emplace(memory.governor(), &memory, control_.interruption());
  auto go_on = [&](bool runs) {
    for (const auto& residency : residencies_)
      if (residency) residency->go_on(runs);
  };
  go_on(true);
  try {
    sharing::Turn turn(control_.job, control_.recorder, control_.record_run, control_.interruption());
    for (size_t end = next_; next_ < stop && !failed_.load(std::memory_order_relaxed); next_ = end) {
      end = std::min(stop, bulk_ends_[next_]);
      const auto bulk = std::span(order_).subspan(next_, end - next_);
      if (!goes_one_by_one(turn)) {
        issue(bulk);
        continue;
      }
      for (const StepId s : bulk) issue_alone(turn, s);  // who looks at single nodes gets single nodes
    }
  } catch (...) {
    fail(std::current_exception());
  }
  wait_for_all();
  go_on(false);
  rethrow();
  if (steps > 0 && next_ == starved_) is_told_ = true;
  return finished();
}

std::vector<Datum> PlacedRun::yielded() {
  const Instruction& instruction = expect_yield(*this);
  const auto at = locations_of(step(order_[next_]));
  std::vector<Datum> values;
  for (size_t k = 0; k < instruction.num_inputs; ++k) {
    const SlotId slot = program_.operands(instruction)[k];
    Datum value = slot == kNoSlot ? Datum() : value_at(at[k], slot);
    if (value.is_tensor() && value.tensor().storage()->lent()) value = value.tensor().clone();
    values.push_back(std::move(value));
  }
  return values;
}

void PlacedRun::resume(std::span<const Datum> values) {
  const Instruction& instruction = expect_yield(*this);
  const auto at = locations_of(step(order_[next_]));
  const auto outputs = slots_handed_to(program_, instruction, values);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] == kNoSlot) continue;
    state_.put(outputs[i], values[i].tensor().contiguous());  // checks the shape
    hold(at[instruction.num_inputs + i], state_.value(outputs[i], /*shared=*/false));
  }
  const StepId stopped = order_[next_];
  Stream& queue = stream(step(stopped).stream);
  if (step(stopped).records) queue.record(*events_[stopped]);
  let_go(stopped, queue);
  ++next_;
}

void PlacedRun::wait_for_all() noexcept {
  for (const auto& stream : streams_) {
    try {
      stream->synchronize();
    } catch (...) {
      fail(std::current_exception());
    }
  }
}

void PlacedRun::fail(std::exception_ptr error, const Instruction* failed) noexcept {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error), failed_at_ = failed;
  failed_ = true;
}

// All streams have been waited for.
void PlacedRun::rethrow() {
  std::lock_guard lock(mutex_);
  if (!error_) return;
  try {
    std::rethrow_exception(std::exchange(error_, nullptr));
  } catch (...) {
    rethrow_with_memory([&](const OutOfMemory&) { return describe_memory(failed_at_); });
  }
}

void PlacedRun::declare(Stream& on, LocationId at, const Datum& datum, Access access, const std::string& name) {
  const StreamPlan::Location& found = location(at);
  const bool tracked = found.memory == Memory::planned || (found.memory == Memory::held && places_[at].tracked) ||
                       (found.memory == Memory::constant && found.device != DevicePlacement::kHost);
  if (!tracked || !datum.is_tensor()) return;
  declare(on, datum.tensor().raw(), datum.tensor().size_bytes(), access, name);
}

void PlacedRun::declare(Stream& on, const void* data, size_t size_bytes, Access access, const std::string& name) {
  AccessChecks* checks = size_bytes > 0 ? on.device().access_checks() : nullptr;
  if (checks) checks->check(on, data, size_bytes, access, name);
}

std::span<const LocationId> PlacedRun::locations_of(const StreamPlan::Step& step) const {
  return std::span(plan_.operands).subspan(step.first_operand, program_.operands(instruction_of(step)).size());
}

template <typename Visit>
void PlacedRun::for_residencies_of(const StreamPlan::Step& step, Visit&& visit) const {
  const bool is_copy = step.instruction == kNoInstruction;
  const int first = is_copy ? location(step.source).device : device_of(step), second = is_copy ? location(step.target).device : first;
  if (Residency* found = residency(first)) visit(*found);
  if (Residency* found = residency(second); found && second != first) visit(*found);
}

void PlacedRun::rethrow_on_device(const StreamPlan::Step& step) {
  if (step.instruction == kNoInstruction) throw;
  try {
    rethrow_from(instruction_of(step), fmt::format("while running on {}", device(device_of(step)).name()), "");
  } catch (...) {
    fail(std::current_exception(), &instruction_of(step));
    throw;
  }
}

// Nothing else is under way: for jobs that share the machine, and where a limit is kept.
void PlacedRun::issue_alone(sharing::Turn& turn, StepId s) {
  const StreamPlan::Step& alone = step(s);
  if (control_.observer && alone.instruction != kNoInstruction)
    control_.call([&] { control_.observer->ready(state_, instruction_of(alone)); });
  const bool has_limit = !residencies_.empty();
  if (turn.has_duty() || has_limit) {
    wait_for_all();
    if (failed_.load()) return;
    try {
      control_.check();
      if (alone.instruction != kNoInstruction) {
        if (turn.has_duty()) turn.before_node(binding().costs().hint(alone.instruction));
        make_outputs(alone);
      }
      Stream& on = stream(alone.stream);
      if (SharedEngine* engine = control_.job ? on.device().shared_engine() : nullptr)
        engine->set_gives_way(on, turn.gives_way() ? std::function<void()>([this] { control_.check(); }) : nullptr);
      for_residencies_of(alone, [&](Residency& of) { of.before(s); });
    } catch (...) {
      rethrow_on_device(alone);
    }
  }
  issue(std::span(&s, 1));
  if (!has_limit) return;
  wait_for_all();
  if (!failed_.load()) for_residencies_of(alone, [&](Residency& of) { of.after(s); });
}

void PlacedRun::issue(std::span<const StepId> bulk) {
  const StreamPlan::Step& first = step(bulk.front());
  const StreamPlan::Step& last = step(bulk.back());
  Stream& queue = stream(first.stream);
  const uint64_t since = control_.recorder ? read_ticks() : 0;
  for (StepId other : first.waits) queue.wait(events_[other]);
  Datum* kept = bulk.size() == 1 ? cached(first) : nullptr;
  if (first.instruction == kNoInstruction) {
    issue_copy(first, queue);
  } else if (kept && kept->defined()) {
    issue_cached(first, *kept, queue);
  } else {
    std::vector<Stream::Work> works;
    for (StepId s : bulk) {
      const StreamPlan::Step& kernel = step(s);
      works.push_back(instruction_of(kernel).dynamic ? dynamic_work(kernel, queue) : static_work(kernel, queue));
    }
    const std::string& name = instruction_of(first).node->name;
    if (works.size() == 1)
      queue.enqueue(std::move(works.front()), name);
    else
      queue.enqueue(
          [works = std::move(works)] {
            for (const Stream::Work& work : works) work();
          },
          name);
  }
  if (control_.recorder) record_launches(bulk, since);
  // An observer looks at every node's outputs as soon as they are there, and so does a cache. It looks at outputs where the caller gets
  // them: a copy into that memory is waited for as well, as the next node's operands are shown before it runs.
  const bool host_waits = last.host_waits || kept || control_.observer;
  if (last.records || host_waits) {
    auto& event = events_[bulk.back()];
    if (!event) event = device(plan_.streams[static_cast<size_t>(last.stream)].device).create_event();
    queue.record(*event);
    if (host_waits) event->synchronize();
  }
  if (host_waits && !failed_.load())
    for (StepId s : bulk) {
      if (step(s).instruction == kNoInstruction) continue;
      try {
        take_up(step(s));
      } catch (...) {
        rethrow_on_device(step(s));
      }
    }
  if (kept && !kept->defined() && !failed_.load()) {
    const Instruction& instruction = instruction_of(first);
    const Datum value = on_host(locations_of(first)[instruction.num_inputs], program_.operands(instruction)[instruction.num_inputs]);
    *kept = value.is_tensor() ? Datum(value.tensor().clone()) : value;
  }
  for (StepId s : bulk) let_go(s, queue);
}

// What is issued to the host's own stream has been done already, and has no launch.
void PlacedRun::record_launches(std::span<const StepId> bulk, uint64_t since) const {
  if (device_of(step(bulk.front())) == DevicePlacement::kHost) return;
  const uint64_t now = read_ticks();
  for (const StepId s : bulk) control_.recorder->record(owner_.record_name(s), RecordKind::launch, since, now, 0, 0, control_.record_run);
}

// The cache's entry for what the step makes; null if there is none.
Datum* PlacedRun::cached(const StreamPlan::Step& step) {
  if (!cache_ || step.instruction == kNoInstruction || instruction_of(step).num_outputs != 1) return nullptr;
  const Instruction& instruction = instruction_of(step);
  const SlotId slot = program_.operands(instruction)[instruction.num_inputs];
  if (slot == kNoSlot) return nullptr;
  const auto found = cache_->find(program_.name(slot));
  return found == cache_->end() ? nullptr : &found->second;
}

void PlacedRun::issue_cached(const StreamPlan::Step& step, const Datum& value, Stream& queue) {
  const Instruction& instruction = instruction_of(step);
  if (instruction.dynamic) {
    made_.assign(1, value);
    return;
  }
  make_outputs(step);
  const LocationId at = locations_of(step)[instruction.num_inputs];
  const SlotId slot = program_.operands(instruction)[instruction.num_inputs];
  Datum target = value_at(at, slot);
  if (!value.is_tensor() || value.tensor().dtype() != target.tensor().dtype() || value.tensor().shape() != target.tensor().shape())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the cached value \"{}\" is {}, the node makes {}", program_.name(slot), describe(value), describe(target)));
  declare(queue, at, target, Access::write, instruction.node->name);
  const Tensor source = value.tensor().contiguous();
  Tensor to = target.tensor();
  if (device_of(step) != DevicePlacement::kHost)
    queue.copy(to.raw(), source.raw(), source.size_bytes(), CopyKind::host_to_device);
  else
    queue.enqueue([to, source]() mutable { to.copy_from(source); }, instruction.node->name);
  queue.synchronize();
}

// Everything that work does on a stream: unless the run has failed, and so that an error is the run's, with the node's name.
template <typename Body>
Stream::Work PlacedRun::guarded(const Instruction& instruction, int where, Body body) {
  return [this, &instruction, where, body = std::move(body)]() mutable {
    if (failed_.load(std::memory_order_relaxed)) return;
    AllocationScope scope(control_.memory ? control_.memory : AllocationScope::current(), MemoryClass::activations);
    ParallelLimit limit(control_.intra_op_threads > 0 ? control_.intra_op_threads : INT32_MAX);
    std::optional<DenormalsAsZero> mode;
    if (control_.denormals_as_zero) mode.emplace();
    try {
      control_.check();
      if (control_.observer) control_.call([&] { control_.observer->before(state_, instruction); });
      const UnderWay node(control_.caller, instruction.node);
      const bool timed = control_.recorder || control_.counts_nodes;
      const uint64_t start = timed ? read_ticks() : 0;
      body();
      const uint64_t end = timed ? read_ticks() : 0;
      if (control_.counts_nodes) counters_->add_shared(index_of(program_.id_of(instruction)), end - start);
      if (control_.recorder) control_.record_node(instruction.record_name, start, end);
    } catch (...) {
      try {
        rethrow_from(instruction, fmt::format("while running on {}", device(where).name()), "");
      } catch (...) {
        fail(std::current_exception(), &instruction);
      }
    }
  };
}

// Memory for what a static step makes and nothing else has made yet.
void PlacedRun::make_outputs(const StreamPlan::Step& step) {
  const Instruction& instruction = instruction_of(step);
  if (instruction.dynamic) return;
  const auto at = locations_of(step);
  for (size_t k = instruction.num_inputs; k < at.size(); ++k) {
    if (at[k] == kNoLocation || location(at[k]).memory != Memory::held || places_[at[k]].datum.defined()) continue;
    const SlotId root = location(at[k]).slot;
    make_place(at[k], slot_info(root).dtype, binding().shape(root));
  }
}

Stream::Work PlacedRun::static_work(const StreamPlan::Step& step, Stream& queue) {
  const Instruction& instruction = instruction_of(step);
  const auto operands = program_.operands(instruction);
  const auto at = locations_of(step);
  make_outputs(step);
  std::vector<void*> pointers(operands.size(), nullptr);
  std::vector<Datum> keep;  // the work comes later: what it uses must not go before
  for (size_t k = 0; k < operands.size(); ++k) {
    if (operands[k] == kNoSlot || has_own_copy(instruction, k)) continue;
    Datum datum = value_at(at[k], operands[k]);
    if (!datum.is_tensor()) continue;
    pointers[k] = datum.tensor().raw();
    declare(queue, at[k], datum, k < instruction.num_inputs ? Access::read : Access::write, instruction.node->name);
    if (location(at[k]).memory == Memory::held) keep.push_back(places_[at[k]].datum);  // what a node gets may be lent
  }
  std::byte* scratch = step.scratch != kNoLocation ? planned_[step.scratch] : nullptr;
  if (step.scratch != kNoLocation)
    declare(queue, scratch, binding().buffer_sizes()[instruction.scratch_buffer], Access::write, instruction.node->name);
  return guarded(instruction, device_of(step),
                 [this, &instruction, scratch, pointers = std::move(pointers), keep = std::move(keep), fresh = newly_used(step)]() mutable {
                   for (const auto bytes : fresh) allocator()->renew(bytes.data(), bytes.size());
                   run_static(instruction, binding(), pointers.data(), scratch, control_);
                 });
}

// The host waits for it before it goes on, so that it may use the run's own variables.
Stream::Work PlacedRun::dynamic_work(const StreamPlan::Step& step, Stream& queue) {
  const Instruction& instruction = instruction_of(step);
  const auto operands = program_.operands(instruction);
  const auto at = locations_of(step);
  const int where = device_of(step);
  std::vector<Datum> inputs(instruction.num_inputs);
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (operands[k] == kNoSlot) continue;
    inputs[k] = for_node(slot_info(operands[k]), value_at(at[k], operands[k]));
    declare(queue, at[k], inputs[k], Access::read, instruction.node->name);
  }
  made_.clear();
  return guarded(instruction, where, [this, &instruction, where, inputs = std::move(inputs)] {
    std::optional<LoopBreakScope> stays;
    if (where != DevicePlacement::kHost) stays.emplace(nullptr);  // what makes a kernel may hold a lock
    evaluator_.allocate = nullptr;
    if (where != DevicePlacement::kHost)
      evaluator_.allocate = [this, where](DType dtype, const Shape& shape) { return allocate(where, dtype, shape); };
    made_ = run_dynamic(owner_.frames(), instruction, binding(), control_, GivenOperands(inputs), evaluator_);
  });
}

// The host has waited for the step: values of extents that nobody knew before, and what an observer is to see.
void PlacedRun::take_up(const StreamPlan::Step& step) {
  const Instruction& instruction = instruction_of(step);
  const auto outputs = program_.operands(instruction).subspan(instruction.num_inputs);
  const auto at = locations_of(step).subspan(instruction.num_inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] == kNoSlot) continue;
    if (instruction.dynamic) {
      Datum& made = made_[i];
      if (!made.defined()) throw Error(ErrorCode::internal, fmt::format("output {} was not made", i));
      hold(at[i], std::move(made));
    }
    // What is handed out by the host's frame, and what observers look at.
    if (control_.observer ||
        (location(at[i]).device == DevicePlacement::kHost && slot_info(location(at[i]).slot).is_output && instruction.dynamic))
      state_.put(location(at[i]).slot, on_host(at[i], location(at[i]).slot));
  }
  if (!control_.observer) return;
  const Device* const ran_on = device_of(step) == DevicePlacement::kHost ? nullptr : &device(device_of(step));
  control_.call([&] { control_.observer->after(state_, instruction, ran_on); });
}

}  // namespace treadle::exec
