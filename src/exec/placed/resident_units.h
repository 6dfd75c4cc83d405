// Moves the values that a device uses between its own memory, the host's memory and a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/devices/device.h"
#include "exec/placed/device_memory.h"
#include "exec/placed/device_uses.h"
#include "memory/spill_file.h"

namespace treadle::exec {

struct ResidentUnit {
  enum class Place : uint8_t { nowhere, device, host, file };
  size_t size_bytes = 0;
  Place place = Place::nowhere;
  bool written = false;  // true once a step, a copy or a kernel's packing has filled the unit's memory
  bool on_host = false;  // true if the host has the present contents
  bool lasting = false;  // true for a constant or a packed block, which is kept from run to run
  bool in_file = false;  // true if the file has the present contents
  std::byte* data = nullptr;
  size_t file_offset = 0;
  std::shared_ptr<Event> arrival;  // completes when fetch() has copied the unit; null if no copy is running
};

/// Moves units between a device's memory, the host's memory and a file. A unit is a location of the plan or a block that kernels have
/// packed (UnitId). Its bytes are charged to the session's account while the unit is in the device's memory, and to the job's account while
/// it is in the host's memory or in a file. Residency decides which units move. Callers must hold the governor's mutex.
class ResidentUnits {
 public:
  using Place = ResidentUnit::Place;

  /// @param device  must have a bus. All arguments must outlive this object.
  ResidentUnits(Device& device, DeviceMemory& memory, const DeviceUses& uses);

  const ResidentUnit& operator[](UnitId unit) const { return units_[unit]; }
  IdRange<UnitId> ids() const { return units_.ids(); }
  const Device& device() const { return device_; }

  /// Called at the start of a run. Discards the contents of the run's file. Constants are in another file, which this call does not change.
  void begin_run() { of_run_.end = 0; }
  /// Registers the memory of a unit. The unit is in the host's memory until it is moved.
  void appear(UnitId unit, ResidentUnit as);
  /// Called when a step has written the unit. @param by_host  true if the host has the new contents too
  void note_written(UnitId unit, bool by_host);
  void drop(UnitId unit);

  /// Charges the unit to the session's account and reserves device memory for it. @return false if the limit does not permit it or the
  /// device's memory is full
  bool reserve(UnitId unit);
  /// Returns true if reserve() would succeed now for a unit of this size.
  bool has_room(size_t size_bytes);
  /// Moves the unit to the device's memory. @pre reserve() has been called for it
  void bring(UnitId unit);
  /// Begins to move the unit to the device's memory, in parallel with other work. @pre the unit has been written
  void fetch(UnitId unit);
  /// Waits until the move that fetch() has begun is done. Returns at once if there is none.
  void await_arrival(UnitId unit);
  /// Moves the unit from the device's memory to the host's.
  void move_out(UnitId unit);
  /// Records that a step uses the unit in the host's memory, over the bus: the number of bytes, and the time this takes.
  void use_over_bus(UnitId unit);
  /// Moves the unit from the host's memory to the file. If the file cannot be written, the unit stays in the host's memory.
  /// @throws Error(io_error)
  void spill(UnitId unit);
  /// Moves the unit from the file to the host's memory, if it is in the file.
  void read_back(UnitId unit);

 private:
  struct File {
    std::unique_ptr<memory::SpillFile> file;
    size_t end = 0;
  };

  Bus& bus() const { return *device_.bus(); }
  File& file_of(const ResidentUnit& unit) { return unit.lasting ? of_constants_ : of_run_; }
  MemoryAccount* account_of(UnitId unit, Place place) const;
  bool reserve(void* data, size_t size_bytes);
  void unreserve(void* data, size_t size_bytes);
  void put(UnitId unit, Place place);
  void move(const ResidentUnit& unit, Bus::Move where);
  void count_move(size_t size_bytes, uint64_t since_ns) const;
  template <typename Piece>
  void exchange(const ResidentUnit& unit, Piece&& piece) const;

  Device& device_;
  DeviceMemory& memory_;
  const DeviceUses& uses_;
  std::unique_ptr<Stream> transfers_;
  IdVector<UnitId, ResidentUnit> units_;
  File of_run_, of_constants_;
};

}  // namespace treadle::exec
