#include "exec/placed/step_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "core/threads/float_mode.h"
#include "core/threads/thread_pool.h"
#include "core/trace/recorder.h"
#include "core/values/allocation.h"
#include "exec/run/run_instruction.h"
#include "treadle/error.h"

namespace treadle::exec {

using Memory = StreamPlan::Location::Memory;

namespace {

// Passes the operands that were looked up when the step was issued to the kernel.
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

StepWork::StepWork(PlacedMemory& memory, PlacedValues& values, DeviceIo& io, const NodeRunner& nodes, BodyRunner& bodies, FirstError& error)
    : steps_(memory.steps()),
      memory_(memory),
      values_(values),
      io_(io),
      nodes_(nodes),
      control_(nodes.control()),
      bodies_(bodies),
      error_(error),
      times_(steps_, nodes) {
  evaluator_.stop_requested = [this] { return error_.stopped() || control_.stop.stopping(); };
}

void StepWork::begin() {
  evaluator_.pool = control_.threads.pool;
  evaluator_.run_id = control_.run_id;
  times_.begin();
}

Stream::Work StepWork::kernel(StepId s, Stream& queue) {
  return steps_.instruction(steps_[s]).dynamic ? dynamic_work(s, queue) : static_work(s, queue);
}

Stream::Work StepWork::static_work(StepId s, Stream& queue) {
  const StreamPlan::Step& step = steps_[s];
  const Instruction& instruction = steps_.instruction(step);
  const auto slots = steps_.program().operands(instruction);
  const auto at = steps_.operands(step);
  const Binding& binding = nodes_.state().binding();
  values_.make_outputs(step);
  std::vector<void*> pointers(slots.size(), nullptr);
  std::vector<MemoryUse> uses;
  for (size_t k = 0; k < slots.size(); ++k) {
    if (slots[k] == kNoSlot || has_own_copy(instruction, k)) continue;
    const Datum datum = values_.value(at[k], slots[k]);
    if (!datum.is_tensor()) continue;
    pointers[k] = datum.tensor().raw();
    const Access access = k < instruction.num_inputs ? Access::read : Access::write;
    declare(queue, at[k], datum, access, instruction.node->name);
    uses.push_back({datum.tensor().raw(), datum.tensor().size_bytes(), access});
  }
  std::byte* scratch = nullptr;
  if (step.scratch != kNoLocation) {
    const size_t scratch_bytes = binding.buffer_sizes()[instruction.scratch_buffer];
    scratch = memory_.reach(steps_.device_of(step), memory_.arenas().at(step.scratch), scratch_bytes);
    declare(queue, scratch, scratch_bytes, Access::write, instruction.node->name);
    uses.push_back({scratch, scratch_bytes, Access::write});
  }
  return guarded(s, queue,
                 [this, &instruction, &binding, &queue, scratch, pointers = std::move(pointers), uses = std::move(uses),
                  fresh = memory_.newly_used(s, binding)]() mutable {
                   for (const auto bytes : fresh) memory_.allocator()->renew(bytes.data(), bytes.size());
                   queue.declare_uses(uses);
                   run_static(instruction, binding, pointers.data(), scratch, control_);
                 });
}

// The host issues no other step until this work has run, so the work may use evaluator_ and made_.
Stream::Work StepWork::dynamic_work(StepId s, Stream& queue) {
  const StreamPlan::Step& step = steps_[s];
  const Instruction& instruction = steps_.instruction(step);
  const auto slots = steps_.program().operands(instruction);
  const auto at = steps_.inputs(step);
  const int device = steps_.device_of(step);
  std::vector<Datum> inputs(at.size());
  clear();
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (slots[k] == kNoSlot) continue;
    inputs[k] = for_node(steps_.slot(slots[k]), values_.value(at[k], slots[k]));
    declare(queue, at[k], inputs[k], Access::read, instruction.node->name);
    if (steps_.location(at[k]).device != device) inputs[k] = for_bodies(at[k], std::move(inputs[k]));
  }
  return guarded(s, queue, [this, &instruction, device, inputs = std::move(inputs)] {
    std::optional<LoopBreakScope> stays;
    // A device's thread may hold a lock, so it must not pause for other jobs here.
    if (device != DevicePlacement::kHost) stays.emplace(nullptr);
    evaluator_.allocate = nullptr;
    evaluator_.on_device = device != DevicePlacement::kHost && instruction.on_device;
    if (device != DevicePlacement::kHost)
      evaluator_.allocate = [this, device](DType dtype, const Shape& shape) { return values_.allocate_reached(device, dtype, shape); };
    made_ = run_dynamic(bodies_, instruction, nodes_.state().binding(), control_, GivenOperands(inputs), evaluator_);
  });
}

// Returns an operand in the form that bodies need. The storage of planned device memory does not name the device, so the result gets a
// storage that does.
Datum StepWork::for_bodies(LocationId at, Datum value) {
  Device& device = steps_.device(steps_.location(at).device);
  if (!value.is_tensor() || device.host_accessible() || value.tensor().storage()->device()) return value;
  const Tensor& tensor = value.tensor();
  lent_.push_back(Storage::of_device(device.shared_from_this(), tensor.raw(), tensor.size_bytes(), {}));
  return Tensor(tensor.dtype(), tensor.shape(), lent_.back());
}

// Returns a value that bodies have made. If the bodies have passed an operand of for_bodies() on unchanged, the result is a copy, because
// the run reuses the operand's memory.
Datum StepWork::kept(Datum made) const {
  if (!made.is_tensor() || std::find(lent_.begin(), lent_.end(), made.tensor().storage()) == lent_.end()) return made;
  const Tensor& tensor = made.tensor();
  Tensor copy(tensor.dtype(), tensor.shape(), tensor.storage()->device()->allocate_somewhere(tensor.size_bytes()));
  copy.copy_from(tensor);
  return copy;
}

// Wraps a node's work for a stream. The work is skipped if the run has failed already. If the work itself fails, the run fails with an
// error that names the node.
template <typename Body>
Stream::Work StepWork::guarded(StepId s, Stream& queue, Body body) {
  return [this, s, &queue, body = std::move(body)]() mutable {
    if (error_.stopped()) return;
    const Instruction& instruction = steps_.instruction(steps_[s]);
    AllocationScope scope(control_.memory.context ? control_.memory.context : AllocationScope::current(), MemoryClass::activations);
    ParallelLimit limit(control_.threads.intra_op > 0 ? control_.threads.intra_op : INT32_MAX);
    std::optional<DenormalsAsZero> mode;
    if (control_.threads.denormals_as_zero) mode.emplace();
    try {
      control_.stop.check();
      nodes_.begin_watched(instruction);
      times_.time(s, queue, 0, [&] {
        const UnderWay node(control_.stop.caller, instruction.node);
        body();
      });
    } catch (...) {
      try {
        rethrow_from(instruction, fmt::format("while running on {}", queue.device().name()), "");
      } catch (...) {
        error_.note(std::current_exception(), steps_.program().id_of(instruction));
      }
    }
  };
}

void StepWork::copy(StepId s, Stream& queue) {
  const StreamPlan::Step& step = steps_[s];
  const StreamPlan::Location &from = steps_.location(step.source), &to = steps_.location(step.target);
  const Datum source = values_.value(step.source, from.slot);
  if (!source.defined()) return values_.leave_out(step.target);
  if (!source.is_tensor())
    throw Error(ErrorCode::internal, fmt::format("\"{}\" cannot be copied between devices", steps_.program().name(from.slot)));
  const Tensor& tensor = source.tensor();
  if (hand_over(step, tensor)) return;
  const bool stays = io_.stays(step.target);
  if (stays)
    values_.make_in(step.target, io_.memory_to_copy_to(step.target, from.device, tensor.dtype(), tensor.shape()));
  else if (to.memory == Memory::held)
    values_.make(step.target, tensor.dtype(), tensor.shape());
  const Datum target = values_.value(step.target, to.slot);
  const bool from_host = from.device == DevicePlacement::kHost && !tensor.storage()->device();
  const bool to_host = to.device == DevicePlacement::kHost && !stays;
  const CopyKind kind = from_host ? CopyKind::host_to_device : to_host ? CopyKind::device_to_host : CopyKind::device_to_device;
  Tensor written = target.tensor();
  const Tensor same = to_host ? io_.same_on_host(s) : Tensor();
  times_.time(s, queue, tensor.size_bytes(), [&] {
    if (same.defined())  // an earlier copy has already copied these bytes to the host
      queue.enqueue_release([same, written]() mutable {
        if (written.size_bytes() > 0) std::memcpy(written.raw(), same.raw(), written.size_bytes());
      });
    else
      queue.copy(written.raw(), tensor.raw(), tensor.size_bytes(), kind);
  });
  if (to_host) io_.note_on_host(s, written);
  // Keeps the memory of source and target alive until the copy is done, because the tensors above may not own it.
  if (from.memory == Memory::held || to.memory == Memory::held)
    queue.enqueue_release([source = values_.held(step.source), target = values_.held(step.target)] {});
  // An output whose shape depends on data is stored in the run here; other outputs were stored at its start.
  RunState& state = nodes_.state();
  if (to.device == DevicePlacement::kHost && steps_.slot(to.slot).is_output && !state.value(to.slot, /*shared=*/false).defined())
    state.put(to.slot, target);
}

// Reuses the memory of the source instead of copying it, if a feed is already on the device that reads it, or if an output stays on the
// device that made it. @return false if the step has to copy
bool StepWork::hand_over(const StreamPlan::Step& step, const Tensor& source) {
  if (memory_.residency()) return false;
  const StreamPlan::Location &from = steps_.location(step.source), &to = steps_.location(step.target);
  if (from.memory == Memory::given && to.memory == Memory::held && source.storage()->device().get() == &steps_.device(to.device)) {
    values_.make_in(step.target, source);
    return true;
  }
  if (from.memory != Memory::held || !source.storage()->device() || !io_.takes_over(step.target, source)) return false;
  values_.make_in(step.target, source);
  RunState& state = nodes_.state();
  if (!state.value(to.slot, /*shared=*/false).defined()) state.put(to.slot, source);
  return true;
}

void StepWork::put_cached(StepId s, const Datum& value, Stream& queue) {
  const StreamPlan::Step& step = steps_[s];
  const Instruction& instruction = steps_.instruction(step);
  if (instruction.dynamic) {
    made_.assign(1, value);
    return;
  }
  values_.make_outputs(step);
  const LocationId at = steps_.outputs(step)[0];
  const Datum target = values_.value(at, steps_.program().operands(instruction)[instruction.num_inputs]);
  nodes_.expect_as_made(instruction, value, target);
  declare(queue, at, target, Access::write, instruction.node->name);
  const Tensor source = value.tensor().contiguous();
  Tensor to = target.tensor();
  if (steps_.device_of(step) != DevicePlacement::kHost)
    queue.copy(to.raw(), source.raw(), source.size_bytes(), CopyKind::host_to_device);
  else
    queue.enqueue([to, source]() mutable { to.copy_from(source); }, instruction.node->name);
  queue.synchronize();
}

Datum StepWork::to_cache(StepId s) const {
  const Instruction& instruction = steps_.instruction(steps_[s]);
  const SlotId slot = steps_.program().operands(instruction)[instruction.num_inputs];
  const Datum value = values_.on_host(steps_.outputs(steps_[s])[0], slot);
  return value.is_tensor() ? Datum(value.tensor().clone()) : value;
}

void StepWork::take_up(StepId s, Stream& queue) {
  const StreamPlan::Step& step = steps_[s];
  const Instruction& instruction = steps_.instruction(step);
  const auto slots = steps_.program().operands(instruction).subspan(instruction.num_inputs);
  const auto at = steps_.outputs(step);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == kNoSlot) continue;
    const StreamPlan::Location& location = steps_.location(at[i]);
    if (instruction.dynamic) {
      if (!made_[i].defined()) throw Error(ErrorCode::internal, fmt::format("output {} was not made", i));
      values_.hold(at[i], kept(std::move(made_[i])));
    }
    const bool is_handed_out = location.device == DevicePlacement::kHost && steps_.slot(location.slot).is_output && instruction.dynamic;
    if (control_.observer || is_handed_out) nodes_.state().put(location.slot, values_.on_host(at[i], location.slot));
  }
  if (evaluator_.device_scratch.defined()) queue.enqueue_release([scratch = std::exchange(evaluator_.device_scratch, {})] {});
  const int device = steps_.device_of(step);
  nodes_.tell_ended(instruction, device == DevicePlacement::kHost ? nullptr : &steps_.device(device));
}

// If the device has an access checker, tells it what the stream's next work reads or writes.
void StepWork::declare(Stream& on, LocationId at, const Datum& datum, Access access, std::string_view name) const {
  if (datum.is_tensor() && values_.is_tracked(at)) declare(on, datum.tensor().raw(), datum.tensor().size_bytes(), access, name);
}

void StepWork::declare(Stream& on, const void* data, size_t size_bytes, Access access, std::string_view name) {
  AccessChecks* checks = size_bytes > 0 ? on.device().access_checks() : nullptr;
  if (checks) checks->check(on, data, size_bytes, access, name);
}

}  // namespace treadle::exec
