// The arenas of a run on devices, one per device. Values whose sizes are known before the run lie there at planned offsets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exec/placed/placed_steps.h"
#include "exec/placed/program_memory.h"
#include "exec/plan/binding.h"
#include "memory/planner.h"

namespace treadle::exec {

/// The arenas belong to one run at a time and are kept for the next one.
class DeviceArenas {
 public:
  explicit DeviceArenas(const PlacedSteps& steps);

  /// Gives every planned location an address. Reuses an arena that is large enough. If no value has grown, reuses the arena's offsets too.
  /// @return true if the binding (the plan for the present extents) is not the one of the last call
  /// @throws Error(resource_exhausted)
  bool place(const Binding& binding, Room room);
  /// Takes over another run's arenas on devices, for both to use. The host's arena stays this run's own.
  void share(const DeviceArenas& with);
  /// Returns a number that changes whenever locations may have other addresses although the binding is the same.
  uint64_t generation() const { return renewals_; }
  /// Frees all arenas.
  void trim() noexcept;

  std::byte* at(LocationId location) const { return addresses_[location]; }
  IdSpan<LocationId, std::byte* const> addresses() const { return IdSpan<LocationId, std::byte* const>(addresses_); }
  /// The arena's memory; null if the device has none.
  const Storage* storage(int device) const { return arenas_[static_cast<size_t>(device)].storage.get(); }
  size_t size_bytes(int device) const { return storage(device) ? storage(device)->size_bytes() : 0; }
  /// The bytes that the device's arena needs for buffers of these sizes; 0 if nothing is planned on the device.
  size_t planned_bytes(int device, IdSpan<BufferId, const size_t> buffer_sizes) const;

 private:
  struct Arena {
    std::vector<LocationId> locations;   // all planned locations of the device
    std::vector<size_t> sizes, offsets;  // per location, in bytes: planned size, and offset in the arena
    std::shared_ptr<Storage> storage;
    bool planned_before = false;  // true if offsets have been planned before, for other extents
  };

  void renew(int device, std::vector<size_t> sizes, Room room);
  std::vector<size_t> sizes_in(const Arena& arena, IdSpan<BufferId, const size_t> buffer_sizes) const;
  static memory::ArenaPlan plan_apart(std::span<const size_t> sizes);
  memory::ArenaPlan plan(const Arena& arena, std::span<const size_t> sizes) const;
  void verify(const Binding& binding) const;

  const PlacedSteps& steps_;
  std::vector<Arena> arenas_;  // one per device
  IdVector<LocationId, std::byte*> addresses_;
  uint64_t renewals_ = 0;
  uint64_t generation_ = 0;  // identifies the binding that the addresses were made for; 0: none
};

}  // namespace treadle::exec
