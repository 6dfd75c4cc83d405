#include "exec/placed_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/allocation.h"
#include "core/checked.h"
#include "core/recorder.h"
#include "exec/host_call.h"
#include "exec/trace_marks.h"
#include "exec/verify_plan.h"
#include "graph/evaluate.h"
#include "graph/op_def.h"
#include "memory/planner.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle::exec {

using Memory = StreamPlan::Location::Memory;

namespace {

size_t index(int32_t i) { return static_cast<size_t>(i); }

// The kernel has a copy of the constant, and does not look at the operand.
bool is_packed(const Instruction& instruction, size_t operand) {
  return !instruction.dynamic && operand < instruction.num_inputs && operand < 32 && (instruction.kernel->packs >> operand & 1U) != 0;
}

}  // namespace

class PlacedRun {
 public:
  PlacedRun(PlacedProgram& owner, const RunControl& control)
      : owner_(owner), program_(owner.program_), plan_(owner.plan_), control_(control), frame_(program_), places_(plan_.locations.size()) {
    evaluator_.pool = control.pool;
    evaluator_.run_id = control.run_id;
    evaluator_.stop_requested = [this] { return failed_.load() || control_.stopping(); };
    for (size_t l = 0; l < places_.size(); ++l) places_[l].steps_left = plan_.locations[l].num_steps;
  }

  // Work that is still under way uses the run's memory.
  ~PlacedRun() {
    failed_ = true;
    wait_for_all();
  }

  void start(std::span<const Datum> feeds, std::span<const Datum> bound) {
    frame_.start(feeds, bound, control_);  // checks the feeds, finds the binding, makes the outputs
    owner_.place(binding());
    for (size_t i = 0; i < feeds.size(); ++i) feeds_[program_.input_slots()[i]] = frame_.value(program_.input_slots()[i]);
  }

  // Bulks before a Yield or the end.
  size_t steps_left() const {
    size_t end = next_;
    while (end < plan_.bulks.size() && !is_yield(end)) ++end;
    return end - next_;
  }

  // Issues so many bulks, up to a Yield or the end, and waits for them. @return true at the end.
  bool advance(size_t count = SIZE_MAX) {
    const size_t stop = next_ + std::min(count, steps_left());
    {
      sharing::Turn turn(control_.job, control_.recorder, control_.interruption());
      for (; next_ < stop && !failed_.load(std::memory_order_relaxed); ++next_) {
        const std::vector<int32_t>& bulk = plan_.bulks[next_];
        if (!turn.has_duty() && !control_.observer) {
          issue(bulk);
          continue;
        }
        for (const int32_t& s : bulk) {  // who looks at single nodes gets single nodes
          if (turn.has_duty()) give_way(turn, s);
          issue(std::span(&s, 1));
        }
      }
    }
    wait_for_all();
    rethrow();
    return next_ == plan_.bulks.size();
  }

  bool is_yield(size_t bulk) const {
    const StreamPlan::Step& first = step(plan_.bulks[bulk].front());
    return first.instruction >= 0 && instruction_of(first).is_yield;
  }
  bool at_yield() const { return next_ < plan_.bulks.size() && is_yield(next_); }

  std::vector<Datum> yielded() {
    const auto [instruction, at] = yield();
    std::vector<Datum> values;
    for (size_t k = 0; k < instruction->num_inputs; ++k) {
      const int32_t slot = program_.operands(*instruction)[k];
      Datum value = slot < 0 ? Datum() : value_at(at[k], slot);
      if (value.is_tensor() && value.tensor().storage()->lent()) value = value.tensor().clone();
      values.push_back(std::move(value));
    }
    return values;
  }

  void resume(std::span<const Datum> values) {
    const auto [instruction, at] = yield();
    const auto outputs = program_.operands(*instruction).subspan(instruction->num_inputs);
    if (values.size() != outputs.size())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the Yield \"{}\" takes {} values back, got {}", instruction->node->name, outputs.size(), values.size()));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i] < 0) continue;
      if (!values[i].is_tensor() || values[i].tensor().dtype() != slot_info(outputs[i]).dtype)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the Yield \"{}\": {} is handed in for \"{}\", which is {}", instruction->node->name, describe(values[i]),
                                program_.name(outputs[i]), to_string(program_.type(outputs[i]))));
      frame_.put(outputs[i], values[i].tensor().contiguous());  // checks the shape
      hold(at[instruction->num_inputs + i], frame_.value(outputs[i]));
    }
    const int32_t stopped = plan_.bulks[next_].front();
    Stream& queue = stream(step(stopped).stream);
    if (step(stopped).records) queue.record(*owner_.events_[index(stopped)]);
    let_go(stopped, queue);
    ++next_;
  }

  void take_outputs(std::span<Datum> outputs) { frame_.take_outputs(outputs); }

 private:
  // A location's memory in this run.
  struct Place {
    Datum datum;             // held: the root's; undefined until it is made
    bool tracked = false;    // the device knows the memory
    int32_t steps_left = 0;  // that touch it
    std::shared_ptr<const void> watch;
  };

  // The Yield that the run has stopped at, and where its operands are.
  std::pair<const Instruction*, std::span<const int32_t>> yield() const {
    if (!at_yield()) throw Error(ErrorCode::invalid_argument, "the run is not at a Yield");
    const StreamPlan::Step& stopped = step(plan_.bulks[next_].front());
    return {&instruction_of(stopped), locations_of(stopped, instruction_of(stopped))};
  }

  const Binding& binding() const { return frame_.binding(); }
  const StreamPlan::Step& step(int32_t i) const { return plan_.steps[index(i)]; }
  const StreamPlan::Location& location(int32_t i) const { return plan_.locations[index(i)]; }
  const Instruction& instruction_of(const StreamPlan::Step& step) const { return program_.instructions()[index(step.instruction)]; }
  const Slot& slot_info(int32_t slot) const { return program_.slots()[index(slot)]; }
  Device& device(int i) const { return *owner_.devices_[static_cast<size_t>(i)]; }
  Stream& stream(int i) const { return *owner_.streams_[static_cast<size_t>(i)]; }

  void wait_for_all() noexcept {
    for (const auto& stream : owner_.streams_) {
      try {
        stream->synchronize();
      } catch (...) {
        fail(std::current_exception());
      }
    }
  }

  void fail(std::exception_ptr error) noexcept {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_ = true;
  }

  void rethrow() {
    std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  Tensor allocate(int where, DType dtype, const Shape& shape) {
    std::shared_ptr<Storage> storage = device(where).allocate(size_bytes(dtype, shape.num_elements()));
    blocks_[storage.get()] = {storage, where};
    return Tensor(dtype, shape, std::move(storage));
  }

  bool lies_on(const Tensor& tensor, int where) const {
    auto found = blocks_.find(tensor.storage().get());
    return found != blocks_.end() && found->second.second == where && !found->second.first.expired();
  }

  // Memory for a value that a step is about to write. On the host an output lies where the caller gets it.
  void make_place(int32_t at, DType dtype, const Shape& shape) {
    const StreamPlan::Location& made = location(at);
    Place& place = places_[index(at)];
    const Slot& info = slot_info(made.slot);
    if (made.device == DevicePlacement::kHost && info.is_output && info.placement == Placement::held && info.static_shape) {
      if (Datum own = frame_.value(made.slot); own.is_tensor()) {
        place.datum = own;
        place.watch = device(made.device).watch(own.tensor().raw(), own.tensor().size_bytes());
        place.tracked = place.watch != nullptr;
        return;
      }
    }
    place.datum = allocate(made.device, dtype, shape);
    place.tracked = true;
  }

  // The value of `slot` as the location has it.
  Datum value_at(int32_t at, int32_t slot) {
    const StreamPlan::Location& found = location(at);
    const Slot& info = slot_info(slot);
    auto viewed = [&](const Datum& root) -> Datum {
      return root.is_tensor() && found.slot != slot ? Datum(whole_as(root.tensor(), info.dtype, binding().shape(slot))) : root;
    };
    switch (found.memory) {
      case Memory::planned: {
        const Shape& shape = binding().shape(slot);
        return Tensor(info.dtype, shape, Storage::lend(owner_.planned_[index(at)], size_bytes(info.dtype, shape.num_elements())));
      }
      case Memory::held: return viewed(places_[index(at)].datum);
      case Memory::given: return info.placement == Placement::known ? Datum(binding().known(slot)) : viewed(feeds_.at(found.slot));
      case Memory::constant: break;
    }
    const Datum& constant = program_.constant(found.slot);
    if (found.device == DevicePlacement::kHost || !constant.is_tensor()) return viewed(constant);
    return viewed(owner_.constants_[index(at)]);
  }

  int copy_in_of(int where) const {
    for (size_t s = 0; s < plan_.streams.size(); ++s)
      if (plan_.streams[s].device == where && plan_.streams[s].queue == StreamPlan::Queue::copy_in) return static_cast<int>(s);
    throw Error(ErrorCode::internal, "a device without a stream for copies");
  }

  void declare(Stream& on, int32_t at, const Datum& datum, Access access, const std::string& name) {
    const StreamPlan::Location& found = location(at);
    const bool tracked = found.memory == Memory::planned || (found.memory == Memory::held && places_[index(at)].tracked) ||
                         (found.memory == Memory::constant && found.device != DevicePlacement::kHost);
    if (!tracked || !datum.is_tensor()) return;
    if (const size_t bytes = datum.tensor().size_bytes(); bytes > 0) on.check_access(datum.tensor().raw(), bytes, access, name);
  }

  // Jobs that share the machine: nothing is ahead of the node that the turn is for.
  void give_way(sharing::Turn& turn, int32_t s) {
    if (step(s).instruction < 0) return;
    for (const auto& other : owner_.streams_) other->synchronize();
    turn.before_node(binding().hint(index(step(s).instruction)));
  }

  void issue(std::span<const int32_t> bulk) {
    const StreamPlan::Step& first = step(bulk.front());
    const StreamPlan::Step& last = step(bulk.back());
    Stream& queue = stream(first.stream);
    for (int32_t other : first.waits) queue.wait(owner_.events_[index(other)]);
    if (first.instruction < 0) {
      issue_copy(first, queue);
    } else {
      std::vector<Stream::Work> works;
      for (int32_t s : bulk) {
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
    // An observer looks at every node's outputs as soon as they are there.
    const bool host_waits = last.host_waits || (control_.observer && first.instruction >= 0);
    if (last.records || host_waits) {
      auto& event = owner_.events_[index(bulk.back())];
      if (!event) event = device(plan_.streams[static_cast<size_t>(last.stream)].device).create_event();
      queue.record(*event);
      if (host_waits) event->synchronize();
    }
    if (host_waits && !failed_.load())
      for (int32_t s : bulk) take_up(step(s));
    for (int32_t s : bulk) let_go(s, queue);
  }

  // Everything that work does on a stream: unless the run has failed, and so that an error is the run's, with the node's name.
  template <typename Body>
  Stream::Work guarded(const Instruction& instruction, int where, Body body) {
    return [this, &instruction, where, body = std::move(body)]() mutable {
      if (failed_.load(std::memory_order_relaxed)) return;
      AllocationScope scope(control_.memory ? control_.memory : AllocationScope::current(), MemoryClass::activations);
      try {
        control_.check();
        if (control_.caller) control_.caller->under_way = instruction.node;
        const uint64_t start = control_.recorder ? read_ticks() : 0;
        {
          const NodeMark mark(*instruction.node);
          body();
        }
        if (control_.recorder) control_.recorder->record(instruction.record_name, RecordKind::node, start, read_ticks());
      } catch (Error& error) {
        error.add_context(fmt::format("{}, while running on {}", describe(*instruction.node), device(where).name()));
        fail(std::make_exception_ptr(error));
      } catch (const std::bad_alloc&) {
        fail(std::make_exception_ptr(Error(ErrorCode::resource_exhausted, "out of memory")));
      } catch (...) {
        fail(std::current_exception());
      }
    };
  }

  std::span<const int32_t> locations_of(const StreamPlan::Step& step, const Instruction& instruction) const {
    return std::span(plan_.operands).subspan(step.first_operand, static_cast<size_t>(instruction.num_inputs) + instruction.num_outputs);
  }

  Stream::Work static_work(const StreamPlan::Step& step, Stream& queue) {
    const Instruction& instruction = instruction_of(step);
    const auto operands = program_.operands(instruction);
    const auto at = locations_of(step, instruction);
    std::vector<void*> pointers(operands.size(), nullptr);
    std::vector<Datum> keep;  // the work comes later: what it uses must not go before
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] < 0) continue;
      const bool is_input = k < instruction.num_inputs;
      if (!is_input && location(at[k]).memory == Memory::held && !places_[index(at[k])].datum.defined()) {
        const int32_t root = location(at[k]).slot;
        make_place(at[k], slot_info(root).dtype, binding().shape(root));
      }
      if (is_packed(instruction, k)) continue;
      Datum datum = value_at(at[k], operands[k]);
      if (!datum.is_tensor()) continue;
      pointers[k] = datum.tensor().raw();
      declare(queue, at[k], datum, is_input ? Access::read : Access::write, instruction.node->name);
      if (location(at[k]).memory == Memory::held) keep.push_back(places_[index(at[k])].datum);  // what a node gets may be lent
    }
    std::byte* scratch = step.scratch >= 0 ? owner_.planned_[index(step.scratch)] : nullptr;
    if (step.scratch >= 0)
      if (const size_t bytes = binding().buffer_sizes()[index(instruction.scratch_buffer)]; bytes > 0)
        queue.check_access(scratch, bytes, Access::write, instruction.node->name);
    return guarded(instruction, location_device(step),
                   [this, &instruction, scratch, pointers = std::move(pointers), keep = std::move(keep)]() mutable {
                     if (control_.observer) control_.call([&] { control_.observer->before(frame_, instruction); });
                     RunContext context(pointers.data(), instruction.num_inputs, scratch, control_.pool, instruction.packed.get());
                     context.run_id = control_.run_id;
                     instruction.run(binding().state(instruction), context);
                   });
  }

  int location_device(const StreamPlan::Step& step) const { return plan_.streams[static_cast<size_t>(step.stream)].device; }

  // The host waits for it before it goes on, so that it may use the run's own variables.
  Stream::Work dynamic_work(const StreamPlan::Step& step, Stream& queue) {
    const Instruction& instruction = instruction_of(step);
    const auto operands = program_.operands(instruction);
    const auto at = locations_of(step, instruction);
    const int where = location_device(step);
    const bool control_flow = instruction.node->op->control_flow != ControlFlow::none;
    std::vector<Datum> inputs(instruction.num_inputs);
    std::vector<DType> dtypes(instruction.num_outputs, DType::undefined);
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] < 0) continue;
      if (k >= inputs.size()) {
        dtypes[k - inputs.size()] = slot_info(operands[k]).dtype;
        continue;
      }
      inputs[k] = for_node(slot_info(operands[k]), value_at(at[k], operands[k]));
      declare(queue, at[k], inputs[k], Access::read, instruction.node->name);
    }
    made_.assign(instruction.num_outputs, Datum());
    return guarded(instruction, where,
                   [this, &instruction, where, control_flow, inputs = std::move(inputs), dtypes = std::move(dtypes)]() mutable {
                     if (control_.observer) control_.call([&] { control_.observer->before(frame_, instruction); });
                     if (control_flow) {
                       for (Datum& input : inputs)  // bodies may hand their inputs on
                         if (input.is_tensor() && input.tensor().storage()->lent()) input = input.tensor().clone();
                       HostCall call(instruction, binding(), control_, std::move(inputs));
                       run_control_flow(call);
                       made_ = call.take_outputs();
                       return;
                     }
                     if (where == DevicePlacement::kHost)
                       evaluator_.allocate = nullptr;
                     else
                       evaluator_.allocate = [this, where](DType dtype, const Shape& shape) { return allocate(where, dtype, shape); };
                     made_ = evaluate_node(*instruction.node, *instruction.kernel, instruction.packed.get(), inputs, dtypes, evaluator_);
                   });
  }

  // The host has waited for the step: values of extents that nobody knew before, and what an observer is to see.
  void take_up(const StreamPlan::Step& step) {
    const Instruction& instruction = instruction_of(step);
    const auto outputs = program_.operands(instruction).subspan(instruction.num_inputs);
    const auto at = locations_of(step, instruction).subspan(instruction.num_inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i] < 0) continue;
      if (instruction.dynamic) {
        Datum& made = made_[i];
        if (!made.defined())
          throw Error(ErrorCode::internal, fmt::format("output {} was not made", i)).add_context(describe(*instruction.node), "");
        hold(at[i], std::move(made));
      }
      // What is handed out by the host's frame, and what observers look at.
      if (control_.observer ||
          (location(at[i]).device == DevicePlacement::kHost && slot_info(location(at[i]).slot).is_output && instruction.dynamic))
        frame_.put(location(at[i]).slot, on_host(at[i], location(at[i]).slot));
    }
    if (control_.observer) control_.call([&] { control_.observer->after(frame_, instruction); });
  }

  void hold(int32_t at, Datum made) {
    const int where = location(at).device;
    Place& place = places_[index(at)];
    if (where == DevicePlacement::kHost || !made.is_tensor() || lies_on(made.tensor(), where)) {
      place.tracked = where != DevicePlacement::kHost;
      place.datum = std::move(made);
      return;
    }
    const Tensor source = made.tensor().contiguous();
    Tensor copy = allocate(where, source.dtype(), source.shape());
    Stream& queue = stream(copy_in_of(where));
    queue.copy(copy.raw(), source.raw(), source.size_bytes(), CopyKind::host_to_device);
    queue.synchronize();
    place.datum = std::move(copy);
    place.tracked = true;
  }

  // A copy that nothing orders but the host, which has waited for the value.
  Datum on_host(int32_t at, int32_t slot) {
    Datum datum = value_at(at, slot);
    if (location(at).device == DevicePlacement::kHost || !datum.is_tensor()) return datum;
    Tensor copy(datum.tensor().dtype(), datum.tensor().shape());
    Stream& queue = stream(copy_in_of(location(at).device));
    queue.copy(copy.raw(), datum.tensor().raw(), copy.size_bytes(), CopyKind::device_to_host);
    queue.synchronize();
    return copy;
  }

  void issue_copy(const StreamPlan::Step& copy, Stream& queue) {
    const StreamPlan::Location &from = location(copy.source), &to = location(copy.target);
    const Datum source = value_at(copy.source, from.slot);
    if (!source.is_tensor())
      throw Error(ErrorCode::internal, fmt::format("\"{}\" cannot be copied between devices", program_.name(from.slot)));
    const Tensor& tensor = source.tensor();
    if (to.memory == Memory::held) make_place(copy.target, tensor.dtype(), tensor.shape());
    Datum target = value_at(copy.target, to.slot);
    const CopyKind kind = from.device == DevicePlacement::kHost ? CopyKind::host_to_device
                          : to.device == DevicePlacement::kHost ? CopyKind::device_to_host
                                                                : CopyKind::device_to_device;
    queue.copy(target.tensor().raw(), tensor.raw(), tensor.size_bytes(), kind);
    // Both sides stay until the copy is done; what value_at gives may be lent.
    if (from.memory == Memory::held || to.memory == Memory::held)
      queue.enqueue([source = places_[index(copy.source)].datum, target = places_[index(copy.target)].datum] {}, "keep");
    // An output of a node that is bound in the run gets its memory here, not from the frame.
    if (to.device == DevicePlacement::kHost && slot_info(to.slot).is_output && !frame_.value(to.slot).defined())
      frame_.put(to.slot, target);
  }

  // When no step that touches a value is yet to be issued, its memory goes with the last work that uses it. Bulks are issued ahead of steps
  // between their own, so that only counting tells.
  void let_go(int32_t s, Stream& queue) {
    auto drop = [&](int32_t at) {
      if (at < 0 || location(at).memory != Memory::held) return;
      if (--places_[index(at)].steps_left > 0) return;
      if (location(at).device == DevicePlacement::kHost && slot_info(location(at).slot).is_output) return;  // waited for at the end
      Place& place = places_[index(at)];
      if (place.datum.defined()) {
        auto datum = std::make_shared<Datum>(std::move(place.datum));
        try {
          queue.enqueue([datum] { *datum = Datum(); }, "release");
        } catch (...) {
          place.datum = std::move(*datum);  // earlier work still uses it: it stays until the run has waited for that
          throw;
        }
      }
      place = {};
    };
    const StreamPlan::Step& done = step(s);
    if (done.instruction < 0) {
      drop(done.source);
      drop(done.target);
    } else {
      const auto at = locations_of(done, instruction_of(done));
      for (size_t k = 0; k < at.size(); ++k)  // an operand may occur twice
        if (std::find(at.begin(), at.begin() + static_cast<ptrdiff_t>(k), at[k]) == at.begin() + static_cast<ptrdiff_t>(k)) drop(at[k]);
    }
  }

  PlacedProgram& owner_;
  const Program& program_;
  const StreamPlan& plan_;
  const RunControl control_;
  Frame frame_;      // the host's view: feeds, binding, outputs
  size_t next_ = 0;  // bulk
  Evaluator evaluator_;
  std::vector<Place> places_;                                                          // per location
  std::unordered_map<int32_t, Datum> feeds_;                                           // by slot
  std::unordered_map<const Storage*, std::pair<std::weak_ptr<Storage>, int>> blocks_;  // of devices, that this run has made
  std::vector<Datum> made_;                                                            // by the instruction that the host waits for
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

PlacedProgram::PlacedProgram(const Program& program, std::vector<std::shared_ptr<Device>> devices, StreamPlan plan)
    : program_(program),
      devices_(std::move(devices)),
      plan_(std::move(plan)),
      arenas_(devices_.size()),
      planned_(plan_.locations.size()),
      constants_(plan_.locations.size()),
      events_(plan_.steps.size()) {
  for (size_t l = 0; l < plan_.locations.size(); ++l)
    if (plan_.locations[l].memory == Memory::planned)
      arenas_[static_cast<size_t>(plan_.locations[l].device)].locations.push_back(static_cast<int32_t>(l));
  static constexpr const char* kNames[] = {"compute", "copy-in", "copy-out"};
  for (size_t s = 0; s < plan_.streams.size(); ++s) {
    Device& device = *devices_[static_cast<size_t>(plan_.streams[s].device)];
    streams_.push_back(
        device.create_stream(fmt::format("{} {} {}", device.name(), kNames[static_cast<size_t>(plan_.streams[s].queue)], s)));
  }
  for (size_t s = 0; s < plan_.steps.size(); ++s)
    if (plan_.steps[s].records)
      events_[s] = devices_[static_cast<size_t>(plan_.streams[static_cast<size_t>(plan_.steps[s].stream)].device)]->create_event();
  copy_constants();
}

PlacedProgram::~PlacedProgram() = default;

void PlacedProgram::copy_constants() {
  for (const StreamPlan::Step& step : plan_.steps) {
    if (step.instruction < 0) continue;
    const Instruction& instruction = program_.instructions()[index(step.instruction)];
    for (size_t k = 0; k < instruction.num_inputs; ++k) {
      const int32_t at = plan_.operands[step.first_operand + k];
      if (at < 0 || is_packed(instruction, k)) continue;
      const StreamPlan::Location& location = plan_.locations[index(at)];
      if (location.memory != Memory::constant || location.device == DevicePlacement::kHost || constants_[index(at)].defined()) continue;
      const Datum& constant = program_.constant(location.slot);
      if (!constant.is_tensor()) continue;
      const Tensor source = constant.tensor().contiguous();
      Device& device = *devices_[static_cast<size_t>(location.device)];
      Tensor copy(source.dtype(), source.shape(), device.allocate(source.size_bytes()));
      Stream& queue = *streams_[static_cast<size_t>(step.stream)];
      queue.copy(copy.raw(), source.raw(), source.size_bytes(), CopyKind::host_to_device);
      queue.synchronize();
      constants_[index(at)] = std::move(copy);
    }
  }
}

// Offsets in the arenas of all devices: what may be in use at the same time lies apart.
void PlacedProgram::place(const Binding& binding) {
  if (generation_ == binding.generation()) return;
  for (size_t d = 0; d < arenas_.size(); ++d) {
    Arena& arena = arenas_[d];
    std::vector<size_t> sizes;
    for (int32_t at : arena.locations) sizes.push_back(binding.buffer_sizes()[index(plan_.locations[index(at)].buffer)]);
    const bool fits = arena.storage && std::equal(sizes.begin(), sizes.end(), arena.sizes.begin(), std::less_equal<>());
    if (!fits) {
      // Extents that grow: room for some more, so that not every run plans anew.
      if (arena.planned_before)
        for (size_t& size : sizes) size += size / 8;
      memory::ArenaPlan made = memory::plan_arena(
          sizes,
          [&](size_t a, size_t b) {
            return plan_.conflict(plan_.locations[index(arena.locations[a])], plan_.locations[index(arena.locations[b])]);
          },
          Storage::kAlignment);
      arena.sizes = std::move(sizes);
      arena.offsets = std::move(made.offsets);
      arena.planned_before = true;
      if (!arena.storage || arena.storage->size_bytes() < made.size_bytes) {
        arena.storage.reset();
        arena.storage = devices_[d]->allocate(made.size_bytes);
      }
    }
    for (size_t k = 0; k < arena.locations.size(); ++k) planned_[index(arena.locations[k])] = arena.storage->data() + arena.offsets[k];
  }
  if (program_.verifies_plans()) verify(binding);
  generation_ = binding.generation();
}

void PlacedProgram::verify(const Binding& binding) const {
  std::vector<size_t> offsets(plan_.locations.size(), DescribedPlan::kNowhere), arena_bytes;
  for (const Arena& arena : arenas_) {
    for (size_t k = 0; k < arena.locations.size(); ++k) offsets[index(arena.locations[k])] = arena.offsets[k];
    arena_bytes.push_back(arena.storage ? arena.storage->size_bytes() : 0);
  }
  verify_plan(describe_plan(binding, plan_, offsets, arena_bytes));
}

void PlacedProgram::run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound) {
  const RunTurns::Turn turn(turns_, control);
  PlacedRun run(*this, control);
  run.start(feeds, bound);
  if (!run.advance()) throw Error(ErrorCode::invalid_argument, "the graph stops at a Yield; run it as a partial run");
  run.take_outputs(outputs);
}

void PlacedProgram::start(std::span<const Datum> feeds, const RunControl& control, std::span<const Datum> bound) {
  run_.reset();
  auto run = std::make_unique<PlacedRun>(*this, control);
  run->start(feeds, bound);
  run_ = std::move(run);
}
bool PlacedProgram::advance() { return run_->advance(); }
size_t PlacedProgram::steps_left() const { return run_->steps_left(); }
size_t PlacedProgram::advance_steps(size_t count) {
  run_->advance(count);
  return run_->steps_left();
}
std::vector<Datum> PlacedProgram::yielded() { return run_->yielded(); }
void PlacedProgram::resume(std::span<const Datum> values) { run_->resume(values); }
void PlacedProgram::take_outputs(std::span<Datum> outputs) {
  run_->take_outputs(outputs);
  run_.reset();
}

}  // namespace treadle::exec
