#include "exec/placed/device_arenas.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/base/checked.h"
#include "exec/verify/verify_plan.h"

namespace treadle::exec {

DeviceArenas::DeviceArenas(const PlacedSteps& steps)
    : steps_(steps), arenas_(steps.devices().size()), addresses_(steps.plan().locations.size()) {
  for (const LocationId l : steps.plan().locations.ids())
    if (const StreamPlan::Location& location = steps.location(l); location.memory == StreamPlan::Location::Memory::planned)
      arenas_[static_cast<size_t>(location.device)].locations.push_back(l);
}

std::vector<size_t> DeviceArenas::sizes_in(const Arena& arena, IdSpan<BufferId, const size_t> buffer_sizes) const {
  std::vector<size_t> sizes;
  for (const LocationId at : arena.locations) sizes.push_back(buffer_sizes[steps_.location(at).buffer]);
  return sizes;
}

// Gives each location bytes that no other location shares. Used where an arena reserves only addresses, so that its size costs no memory.
memory::ArenaPlan DeviceArenas::plan_apart(std::span<const size_t> sizes) {
  memory::ArenaPlan made;
  for (const size_t size : sizes) {
    made.offsets.push_back(made.size_bytes);
    const auto aligned = static_cast<int64_t>(align_up(size, Storage::kAlignment));
    made.size_bytes = static_cast<size_t>(checked_add(static_cast<int64_t>(made.size_bytes), aligned));
  }
  return made;
}

// Plans offsets such that locations which may be in use at the same time share no bytes.
memory::ArenaPlan DeviceArenas::plan(const Arena& arena, std::span<const size_t> sizes) const {
  const auto conflict = [&](size_t a, size_t b) {
    return steps_.plan().conflict(steps_.location(arena.locations[a]), steps_.location(arena.locations[b]));
  };
  return memory::plan_arena(sizes, conflict, Storage::kAlignment);
}

size_t DeviceArenas::planned_bytes(int device, IdSpan<BufferId, const size_t> buffer_sizes) const {
  const Arena& arena = arenas_[static_cast<size_t>(device)];
  return arena.locations.empty() ? 0 : plan(arena, sizes_in(arena, buffer_sizes)).size_bytes;
}

bool DeviceArenas::place(const Binding& binding, Room room) {
  if (generation_ == binding.generation()) return false;
  generation_ = 0;  // if memory runs out below, addresses_ no longer matches any binding
  for (size_t d = 0; d < arenas_.size(); ++d) {
    const Arena& arena = arenas_[d];
    std::vector<size_t> sizes = sizes_in(arena, binding.buffer_sizes());
    const bool fits = arena.storage && std::equal(sizes.begin(), sizes.end(), arena.sizes.begin(), std::less_equal<>());
    if (!fits) renew(static_cast<int>(d), std::move(sizes), room);
    for (size_t k = 0; k < arena.locations.size(); ++k) addresses_[arena.locations[k]] = arena.storage->data() + arena.offsets[k];
  }
  if (steps_.program().planning().verify) verify(binding);
  generation_ = binding.generation();
  return true;
}

void DeviceArenas::share(const DeviceArenas& with) {
  for (size_t d = 1; d < arenas_.size(); ++d) {
    if (arenas_[d].storage == with.arenas_[d].storage && arenas_[d].offsets == with.arenas_[d].offsets) continue;
    arenas_[d] = with.arenas_[d];
    generation_ = 0;
    ++renewals_;
  }
}

void DeviceArenas::renew(int device, std::vector<size_t> sizes, Room room) {
  Arena& arena = arenas_[static_cast<size_t>(device)];
  ++renewals_;
  // The extents have changed before and may grow again. Headroom of 1/8 avoids planning for every run.
  if (std::exchange(arena.planned_before, true))
    for (size_t& size : sizes) size += size / 8;
  Bus* const bus = room == Room::anywhere && device != DevicePlacement::kHost ? steps_.device(device).bus() : nullptr;
  memory::ArenaPlan made = bus && bus->addresses_are_free() ? plan_apart(sizes) : plan(arena, sizes);
  arena.sizes = std::move(sizes);
  arena.offsets = std::move(made.offsets);
  if (arena.storage && arena.storage->size_bytes() >= made.size_bytes) return;
  arena.storage.reset();
  arena.storage = allocate_on(steps_.device(device), made.size_bytes, device == DevicePlacement::kHost ? Room::on_device : room);
}

void DeviceArenas::trim() noexcept {
  generation_ = 0;
  ++renewals_;
  for (Arena& arena : arenas_) arena.storage.reset();
}

void DeviceArenas::verify(const Binding& binding) const {
  IdVector<LocationId, size_t> offsets(steps_.plan().locations.size(), DescribedPlan::kNowhere);
  std::vector<size_t> arena_bytes;
  for (const Arena& arena : arenas_) {
    for (size_t k = 0; k < arena.locations.size(); ++k) offsets[arena.locations[k]] = arena.offsets[k];
    arena_bytes.push_back(arena.storage ? arena.storage->size_bytes() : 0);
  }
  verify_plan(describe_plan(binding, steps_.plan(), offsets, arena_bytes));
}

}  // namespace treadle::exec
