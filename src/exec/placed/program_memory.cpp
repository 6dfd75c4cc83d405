#include "exec/placed/program_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "treadle/out_of_memory.h"

namespace treadle::exec {

std::shared_ptr<Storage> allocate_on(Device& device, size_t size_bytes, Room room) {
  Bus* const bus = room == Room::anywhere ? device.bus() : nullptr;
  return bus ? bus->allocate_anywhere(size_bytes) : device.allocate(size_bytes);
}

DeviceConstants::DeviceConstants(const PlacedSteps& steps, const Binding& binding, std::span<const std::unique_ptr<Stream>> streams,
                                 Room room)
    : steps_(steps), parameters_(binding.parameters()), tensors_(steps.plan().locations.size()) {
  for (const StreamPlan::Step& step : steps.plan().steps) {
    if (step.is_copy()) continue;
    if (room == Room::on_device) note_packed(step, binding);
    copy_inputs(step, binding, streams, room);
  }
  try {
    reserve_packed();
  } catch (...) {
    release_packed();
    throw;
  }
}

DeviceConstants::~DeviceConstants() { release_packed(); }

void DeviceConstants::note_packed(const StreamPlan::Step& step, const Binding& binding) {
  const int on = steps_.device_of(step);
  const PackedState* const state = binding.packed(steps_.instruction(step));
  if (on == DevicePlacement::kHost || !state || !steps_.device(on).bus()) return;
  const bool is_known = std::any_of(packed_.begin(), packed_.end(), [&](const Packed& p) { return p.state == state && p.device == on; });
  if (!is_known) packed_.push_back({state, on});
}

void DeviceConstants::copy_inputs(const StreamPlan::Step& step, const Binding& binding, std::span<const std::unique_ptr<Stream>> streams,
                                  Room room) {
  const auto inputs = steps_.inputs(step);
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k] == kNoLocation || has_own_copy(steps_.instruction(step), k)) continue;
    const StreamPlan::Location& location = steps_.location(inputs[k]);
    Tensor& copy = tensors_[inputs[k]];
    if (location.memory != StreamPlan::Location::Memory::constant || location.device == DevicePlacement::kHost || copy.defined()) continue;
    const Datum& constant = binding.constant(location.slot);
    if (!constant.is_tensor()) continue;
    const Tensor source = constant.tensor().contiguous();
    copy = Tensor(source.dtype(), source.shape(), allocate_on(steps_.device(location.device), source.size_bytes(), room));
    const auto of_device = [&](const StreamPlan::Stream& stream) { return stream.device == location.device; };
    const auto& planned = steps_.plan().streams;
    Stream& queue = *streams[static_cast<size_t>(std::find_if(planned.begin(), planned.end(), of_device) - planned.begin())];
    Bus* const bus = source.size_bytes() > 0 ? queue.device().bus() : nullptr;
    queue.copy(bus ? bus->reach(copy.raw(), copy.size_bytes()) : copy.raw(), source.raw(), source.size_bytes(), CopyKind::host_to_device);
    queue.synchronize();
  }
}

void DeviceConstants::reserve_packed() {
  std::lock_guard lock(mutex_);
  for (Packed& packed : packed_) {
    const size_t bytes = packed.state->size_bytes();
    if (bytes <= packed.reserved_bytes) continue;
    Device& device = steps_.device(packed.device);
    if (!device.bus()->reserve(nullptr, bytes - packed.reserved_bytes))
      throw OutOfMemory(fmt::format("{} has no room for {} bytes of packed weights", device.name(), bytes));
    packed.reserved_bytes = bytes;
  }
}

void DeviceConstants::release_packed() noexcept {
  for (Packed& packed : packed_) steps_.device(packed.device).bus()->unreserve(nullptr, std::exchange(packed.reserved_bytes, 0));
}

bool ProgramMemory::has_bus() const {
  return std::any_of(steps_.devices().begin(), steps_.devices().end(), [](const auto& device) { return device->bus() != nullptr; });
}

void ProgramMemory::note_full() {
  is_full_.store(true, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  constants_.reset();
}

std::shared_ptr<DeviceConstants> ProgramMemory::constants(const Binding& binding, std::span<const std::unique_ptr<Stream>> streams) {
  std::lock_guard lock(mutex_);
  if (constants_ && constants_->parameters() == binding.parameters()) return constants_;
  constants_.reset();  // frees constants of earlier parameters, unless a run uses them, before new ones are made
  constants_ = std::make_shared<DeviceConstants>(steps_, binding, streams, Room::on_device);
  return constants_;
}

}  // namespace treadle::exec
