#include "exec/placed/placed_memory.h"

#include "core/values/allocation.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {

PlacedMemory::PlacedMemory(ProgramMemory& of_program, const RunStreams& streams, const RunControl& control)
    : of_program_(of_program), steps_(of_program.steps()), streams_(streams), control_(control), arenas_(steps_) {
  if (of_program.keeps_limits()) keep_to_limits();
}

void PlacedMemory::keep_to_limits() {
  residency_.reset();  // the destructor waits for moves that have not ended
  residency_ = std::make_unique<Residency>(steps_, streams_, of_program_.of_session());
}

void PlacedMemory::begin(const Binding& binding) {
  if (constants_ && constants_->parameters() != binding.parameters()) {
    if (residency_) keep_to_limits();  // waits for moves that have not ended, before the constants' memory is freed
    constants_.reset();
  }
  if (!residency_ && !begin_without_limits(binding)) {
    of_program_.note_full();
    trim();
    constants_.reset();
    keep_to_limits();
  }
  if (residency_) {
    residency_->begin(binding, arenas_.addresses());
    arenas_.place(binding, Room::anywhere);
    if (!constants_) {
      constants_ = std::make_shared<DeviceConstants>(steps_, binding, streams_.all(), Room::anywhere);
      for (const LocationId l : steps_.plan().locations.ids())
        if (const Tensor& constant = constants_->at(l); constant.defined())
          residency_->add(l, constant.raw(), constant.size_bytes(), /*from_host=*/true);
    }
  }
  renew_arenas();
}

// Places arenas and constants in the devices' own memory. @return false if a device has too little memory and some device can use the
// host's memory over a bus
bool PlacedMemory::begin_without_limits(const Binding& binding) {
  try {
    const bool is_new = arenas_.place(binding, Room::on_device);
    if (!constants_) constants_ = of_program_.constants(binding, streams_.all());
    if (is_new) constants_->reserve_packed();
    return true;
  } catch (const OutOfMemory&) {
    if (!of_program_.has_bus()) throw;
    return false;
  }
}

void PlacedMemory::end() noexcept {
  if (residency_)
    residency_->end();
  else if (steps_.program().parameters())
    constants_.reset();  // the parameters may change before the next run
}

std::shared_ptr<Storage> PlacedMemory::allocate(int device, size_t size_bytes) const {
  Device& on = steps_.device(device);
  const bool has_bus = on.bus() != nullptr && device != DevicePlacement::kHost;
  return residency_ && has_bus ? on.bus()->allocate_anywhere(size_bytes) : on.allocate_somewhere(size_bytes);
}

std::byte* PlacedMemory::reach(int device, std::byte* data, size_t size_bytes) const {
  Bus* const bus = device == DevicePlacement::kHost || size_bytes == 0 ? nullptr : steps_.device(device).bus();
  return bus ? static_cast<std::byte*>(bus->reach(data, size_bytes)) : data;
}

Allocator* PlacedMemory::allocator() const {
  return control_.memory.context && !residency_ ? control_.memory.context->allocator.get() : nullptr;
}

// Tells the session's allocator that the arenas' contents are no longer needed, for arenas that the host can write to.
void PlacedMemory::renew_arenas() const {
  Allocator* const own = allocator();
  if (!own) return;
  for (size_t d = 0; d < steps_.devices().size(); ++d)
    if (const Storage* arena = arenas_.storage(static_cast<int>(d)); arena && steps_.devices()[d]->memory_is_hosts())
      own->renew(arena->data(), arena->size_bytes());
}

std::vector<std::span<std::byte>> PlacedMemory::newly_used(StepId s, const Binding& binding) const {
  const StreamPlan::Step& step = steps_[s];
  std::vector<std::span<std::byte>> ranges;
  if (!allocator() || !steps_.device(steps_.device_of(step)).memory_is_hosts()) return ranges;
  const auto add = [&](LocationId at) {
    if (at == kNoLocation) return;
    const StreamPlan::Location& location = steps_.location(at);
    if (location.memory == StreamPlan::Location::Memory::planned && location.uses.front() == s)
      ranges.emplace_back(arenas_.at(at), binding.buffer_sizes()[location.buffer]);
  };
  for (const LocationId at : steps_.outputs(step)) add(at);
  add(step.scratch);
  return ranges;
}

}  // namespace treadle::exec
