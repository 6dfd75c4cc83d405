#include "exec/placed/device_io.h"

#include <algorithm>
#include <utility>

#include "core/devices/device.h"
#include "graph/op_def.h"

namespace treadle::exec {

Crossings::Crossings(const PlacedSteps& steps)
    : only_for_devices(steps.program().slots().size(), 1), only_for_caller(steps.program().slots().size(), kNoLocation) {
  for (const StreamPlan::Step& step : steps.plan().steps) {
    if (step.is_copy()) {
      const StreamPlan::Location& to = steps.location(step.target);
      if (to.device == DevicePlacement::kHost && to.num_steps == 1 && to.memory == StreamPlan::Location::Memory::held)
        only_for_caller[to.slot] = step.target;
      continue;
    }
    const auto slots = steps.program().operands(steps.instruction(step));
    const auto at = steps.operands(step);
    for (size_t k = 0; k < slots.size(); ++k)
      if (slots[k] != kNoSlot && (at[k] == kNoLocation || steps.location(at[k]).device == DevicePlacement::kHost))
        only_for_devices[steps.slot(slots[k]).root] = 0;
  }
  find_same_bytes(steps);
}

void Crossings::find_same_bytes(const PlacedSteps& steps) {
  const Program& program = steps.program();
  IdVector<SlotId, SlotId> same_as(program.slots().size(), kNoSlot);  // by root: the root whose bytes a kernel repeats
  IdVector<SlotId, int> writers(program.slots().size(), 0);
  IdVector<SlotId, StepId> first_copy(program.slots().size(), kNoStep);
  first_of_same.assign(steps.plan().steps.size(), kNoStep);
  for (const StepId s : steps.plan().steps.ids()) {
    const StreamPlan::Step& step = steps[s];
    if (!step.is_copy()) {
      const Instruction& instruction = steps.instruction(step);
      const auto slots = program.operands(instruction);
      for (const SlotId out : slots.subspan(instruction.num_inputs))
        if (out != kNoSlot) ++writers[steps.slot(out).root];
      if (!instruction.node->op) continue;
      for (const Alias& alias : instruction.node->op->alias) {
        const size_t k = instruction.num_inputs + static_cast<size_t>(alias.output);
        if (alias.kind != Alias::Kind::view || k >= slots.size() || static_cast<size_t>(alias.input) >= instruction.num_inputs) continue;
        const SlotId in = slots[static_cast<size_t>(alias.input)], out = slots[k];
        const bool are_whole = in != kNoSlot && out != kNoSlot && in != out && steps.slot(in).root == in && steps.slot(out).root == out;
        if (are_whole) same_as[out] = in;
      }
      continue;
    }
    const StreamPlan::Location& to = steps.location(step.target);
    if (to.device != DevicePlacement::kHost || to.memory != StreamPlan::Location::Memory::held) continue;
    SlotId bytes = to.slot;
    while (same_as[bytes] != kNoSlot && writers[bytes] == 1) bytes = same_as[bytes];
    if (writers[bytes] > 1) continue;  // it is written over in place
    StepId& first = first_copy[bytes];
    if (first == kNoStep) {
      first = s;
    } else if (steps[first].stream == step.stream && only_for_caller[to.slot] == step.target) {
      first_of_same[s] = first_of_same[first] = first;
    }
  }
}

DeviceIo::DeviceIo(const Crossings& crossings, const PlacedMemory& memory, const RunState& state, const RunControl& control)
    : crossings_(crossings), steps_(memory.steps()), memory_(memory), state_(state), control_(control) {}

Datum DeviceIo::take_feed(size_t input, const Datum& feed) {
  if (!feed.is_tensor() || !feed.tensor().storage()->device()) return feed;
  const Device& lies_on = *feed.tensor().storage()->device();
  const auto devices = steps_.devices().subspan(1);
  const SlotId slot = steps_.program().input_slots()[input];
  const bool may_stay = crossings_.only_for_devices[slot] && !control_.observer && !memory_.of_program().keeps_limits() &&
                        std::all_of(devices.begin(), devices.end(), [&](const auto& device) { return device->reaches(lies_on); });
  if (!may_stay) return from_device(feed);
  const Tensor contiguous = feed.tensor().contiguous();
  for (size_t d = 1; d <= devices.size(); ++d) watch(static_cast<int>(d), contiguous);
  return contiguous;
}

void DeviceIo::watch(int device, const Tensor& tensor) {
  if (AccessChecks* checks = steps_.device(device).access_checks())
    if (auto watch = checks->watch(tensor.raw(), tensor.size_bytes())) watches_.push_back(std::move(watch));
}

Datum DeviceIo::from_device(Datum value) {
  return value.is_tensor() && value.tensor().storage()->device() ? Datum(value.tensor().clone()) : value;
}

void DeviceIo::choose_outputs(std::span<const Datum> bound, std::vector<OutputMemory>& memory) {
  if (control_.observer || memory_.of_program().keeps_limits()) return;
  auto bound_tensor = [&](size_t k) { return k < bound.size() && bound[k].is_tensor() ? bound[k].tensor() : Tensor(); };
  auto is_wanted = [&](size_t k) {
    if (const Tensor own = bound_tensor(k); own.defined()) return own.storage()->device() != nullptr && own.is_contiguous();
    return k < memory.size() && (memory[k].device || memory[k].stays);
  };
  const auto outputs = steps_.program().output_slots();
  auto has_memory = [&](size_t k) { return bound_tensor(k).defined() || (k < memory.size() && memory[k].storage); };
  for (size_t k = 0; k < outputs.size(); ++k) {
    const SlotId root = steps_.slot(outputs[k]).root;
    const LocationId at = crossings_.only_for_caller[root];
    if (at == kNoLocation || !is_wanted(k)) continue;
    // Outputs that share bytes, or are views, need memory that the run makes.
    bool stays = outputs[k] == root || !has_memory(k);
    for (size_t other = 0; other < outputs.size(); ++other)
      if (other != k && steps_.slot(outputs[other]).root == root) stays &= is_wanted(other) && !has_memory(k) && !has_memory(other);
    if (!stays) continue;
    if (memory.size() < outputs.size()) memory.resize(outputs.size());
    memory[k].made_in_run = true;
    Tensor own = bound_tensor(k);
    if (!own.defined() && memory[k].storage)
      own = Tensor(DType::uint8, Shape{static_cast<int64_t>(memory[k].storage->size_bytes())}, memory[k].storage);
    staying_.emplace(at, std::move(own));
  }
}

Tensor DeviceIo::memory_for(LocationId at, int maker, DType dtype, const Shape& shape) {
  const Tensor& given = staying_.at(at);
  const size_t bytes = size_bytes(dtype, shape.num_elements());
  if (given.defined() && given.storage()->device() && steps_.device(maker).reaches(*given.storage()->device()) &&
      given.size_bytes() >= bytes && !state_.is_fed(given)) {
    watch(maker, given);
    return Tensor(dtype, shape, given.storage(), static_cast<size_t>(given.raw() - given.storage()->data()));
  }
  return Tensor(dtype, shape, memory_.allocate(maker, bytes));
}

Tensor DeviceIo::same_on_host(StepId copy) const {
  const auto found = on_host_.find(crossings_.first_of_same[copy]);
  return found == on_host_.end() ? Tensor() : found->second;
}

void DeviceIo::note_on_host(StepId copy, const Tensor& tensor) {
  if (const StepId first = crossings_.first_of_same[copy]; first != kNoStep) on_host_.try_emplace(first, tensor);
}

void DeviceIo::clear() noexcept {
  staying_.clear();
  on_host_.clear();
  watches_.clear();
}

}  // namespace treadle::exec
