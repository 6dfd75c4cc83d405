// Moves the values that a device uses between its own memory, the host's memory and a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/devices/device.h"
#include "exec/placed/device_memory.h"
#include "exec/placed/device_uses.h"
#include "exec/placed/steps_under_way.h"
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
  std::shared_ptr<Event> arrival;         // completes when the unit's last move is done; null: no move is under way
  std::vector<StepsUnderWay::Mark> uses;  // the last step of each stream that has used the unit since its last move
};

/// Moves units between a device's memory, the host's memory and a file. A unit is a location of the plan or a block that kernels have
/// packed (UnitId). Residency decides which units move. Callers must hold the governor's mutex.
///
/// Moves have streams of their own, and wait there for the steps that use the unit. A step that uses it next must wait for arrival().
/// A unit's bytes are charged to an account: the session's while the unit is in the device's memory, the job's while it is in the host's
/// memory or in a file. When a unit moves or is dropped, its old memory is freed, and its bytes are discharged, as soon as the work that
/// uses that memory is done. Until then the unit is leaving.
class ResidentUnits {
 public:
  using Place = ResidentUnit::Place;

  /// @param device  must have a bus. All arguments must outlive this object.
  ResidentUnits(Device& device, DeviceMemory& memory, const DeviceUses& uses, StepsUnderWay& under_way);

  const ResidentUnit& operator[](UnitId unit) const { return units_[unit]; }
  IdRange<UnitId> ids() const { return units_.ids(); }
  const Device& device() const { return device_; }

  /// Called at the start of a run. Discards the contents of the run's file. Constants are in another file, which this call does not change.
  void begin_run() { of_run_.end = 0; }
  /// Registers the memory of a unit. The unit is in the host's memory until it is moved.
  void appear(UnitId unit, ResidentUnit as);
  /// Called when a step that writes the unit was issued. @param by_host  true if the host has the same contents
  void note_written(UnitId unit, bool by_host);
  /// Called when a step that uses the unit was issued. @param mark  the place behind the step
  void note_used(UnitId unit, StepsUnderWay::Mark mark);
  /// Forgets the unit, which no step uses again.
  void let_go(UnitId unit);
  /// Like let_go(), but waits until the unit's memory is freed.
  void drop(UnitId unit);

  /// Charges the unit to the session's account and reserves device memory for it. @return false if the limit or the device has too little
  /// room. @pre the unit is not leaving the device
  bool reserve(UnitId unit);
  /// Returns true if reserve() would succeed now for a unit of this size.
  bool has_room(size_t size_bytes);
  /// Begins to move the unit to the device's memory. @pre reserve() has been called for it
  void bring(UnitId unit);
  /// Begins to move the unit from the device's memory to the host's.
  void move_out(UnitId unit);
  /// Records that a step uses the unit in the host's memory, over the bus: the number of bytes, and the time this takes.
  void use_over_bus(UnitId unit);
  /// Returns an event for which work that uses the unit must wait; null if there is none.
  std::shared_ptr<Event> arrival(UnitId unit);
  /// Moves the unit from the host's memory to the file. If the file cannot be written, the unit stays in the host's memory.
  /// @throws Error(io_error)
  void spill(UnitId unit);
  /// Moves the unit from the file to the host's memory, if it is in the file.
  void read_back(UnitId unit);

  /// Frees the memory of units that have left.
  void free_left();
  void await_leaving();
  /// Waits for all moves, and frees the memory of all units that are leaving. @pre the steps that use them are done. @throws the error of a
  /// move, after it has done all else
  void settle();
  /// Returns true if the unit is leaving the device.
  bool is_leaving(UnitId unit) const;
  /// Returns how many bytes are leaving this place.
  size_t leaving_bytes(Place place) const;
  /// Returns an event that completes when the unit that left this place first has left; null if no unit is leaving it.
  std::shared_ptr<Event> next_to_leave(Place place);

 private:
  struct File {
    std::unique_ptr<memory::SpillFile> file;
    size_t end = 0;
  };
  struct Leaving {
    UnitId unit;
    ResidentUnit was;                  // the unit before it left
    std::shared_ptr<Event> last_move;  // the move with which it leaves, or an earlier one; null if there is none
    bool is_forgotten = false;         // no step uses the unit again
  };

  Bus& bus() const { return *device_.bus(); }
  File& file_of(const ResidentUnit& unit) { return unit.lasting ? of_constants_ : of_run_; }
  MemoryAccount* account_of(UnitId unit, Place place) const;
  bool reserve(void* data, size_t size_bytes);
  void unreserve(void* data, size_t size_bytes);
  void put(UnitId unit, Place place);
  void leave(Leaving leaving);
  bool has_left(const Leaving& leaving);
  void free(const Leaving& leaving);
  std::shared_ptr<Event> end_of(const Leaving& leaving);
  void move(ResidentUnit& unit, Stream& stream, Bus::Move where);
  void follow_uses(const ResidentUnit& unit, Stream& stream);
  void await(UnitId unit);
  void count_move(size_t size_bytes, uint64_t took_ns) const;
  template <typename Piece>
  void exchange(const ResidentUnit& unit, Piece&& piece) const;

  Device& device_;
  DeviceMemory& memory_;
  const DeviceUses& uses_;
  StepsUnderWay& under_way_;
  // Two streams, so that a value on its way to the device does not wait for those that leave after a step.
  std::unique_ptr<Stream> to_device_, to_host_;
  IdVector<UnitId, ResidentUnit> units_;
  std::vector<Leaving> leaving_;  // in the order in which they began to leave
  File of_run_, of_constants_;
};

}  // namespace treadle::exec
