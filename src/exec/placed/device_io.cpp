#include "exec/placed/device_io.h"

#include <algorithm>
#include <utility>

#include "core/devices/device.h"

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
  for (size_t k = 0; k < outputs.size(); ++k) {
    const SlotId root = steps_.slot(outputs[k]).root;
    const LocationId at = crossings_.only_for_caller[root];
    if (at == kNoLocation || outputs[k] != root || !is_wanted(k)) continue;
    if (std::count_if(outputs.begin(), outputs.end(), [&](SlotId other) { return steps_.slot(other).root == root; }) > 1) continue;
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

void DeviceIo::clear() noexcept {
  staying_.clear();
  watches_.clear();
}

}  // namespace treadle::exec
