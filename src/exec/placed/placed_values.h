// Stores the values of a run on devices. A location has a value from the step that makes it to the last step that reads it.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <utility>

#include "exec/placed/device_io.h"
#include "exec/placed/placed_memory.h"
#include "exec/placed/placed_steps.h"
#include "exec/placed/run_streams.h"
#include "exec/run/run_state.h"
#include "treadle/datum.h"

namespace treadle::exec {

/// A location (StreamPlan::Location) is the copy of a value on one device. A slot is a value of the program; views share the bytes of
/// another slot, their root. The memory of a location is planned (in an arena), held (allocated in the run), given (a feed, or a value
/// known before the run, in the host's memory) or that of a constant.
class PlacedValues {
 public:
  /// @param state  has the run's binding and feeds, and its outputs on the host.
  PlacedValues(PlacedMemory& memory, const RunStreams& streams, const RunState& state, DeviceIo& io);

  /// Called at the start of a run, after clear().
  void begin();
  void clear() noexcept;

  /// Returns a slot's value at a location; undefined if no step has made it. The tensor may refer to the run's memory without owning it.
  Datum value(LocationId at, SlotId slot) const;
  /// Returns the value at a held location, with the type and shape of the root slot (the slot whose bytes views share).
  const Datum& held(LocationId at) const { return places_[at].datum; }
  /// Returns the value on the host, copied from the device if need be. @pre the host has waited for the step that makes it
  Datum on_host(LocationId at, SlotId slot) const;
  /// Returns true if accesses to the location's memory can be checked (AccessChecks).
  bool is_tracked(LocationId at) const;

  /// Makes memory for the held outputs of a step that have none yet. Does nothing if the shapes of its outputs depend on data.
  /// @throws Error(resource_exhausted)
  void make_outputs(const StreamPlan::Step& step);
  /// Makes memory for a held location. Outputs on the host get the memory that the caller receives. @throws Error(resource_exhausted)
  void make(LocationId at, DType dtype, const Shape& shape);
  /// Uses a tensor on a device as the memory of a held location, without a copy.
  void make_in(LocationId at, Tensor memory) { set(at, std::move(memory), /*tracked=*/true, /*from_host=*/false); }
  /// Notes that the location has no value in this run.
  void leave_out(LocationId at) { places_[at].is_absent = true; }
  /// Sets the value of a held location, copying it to the location's device if needed. @throws Error(resource_exhausted)
  void hold(LocationId at, Datum made);
  /// Allocates on a device. hold() recognizes the memory and does not copy from it. @throws Error(resource_exhausted)
  Tensor allocate(int device, DType dtype, const Shape& shape);
  /// Keeps the memory of these held locations alive until the stream has completed all work enqueued so far.
  void keep(std::span<const LocationId> locations, Stream& queue) const;
  /// Like allocate(), but the tensor has the address at which kernels enqueued now find the contents (Bus::reach). The address changes when
  /// the contents move between the device's memory and the host's.
  Tensor allocate_reached(int device, DType dtype, const Shape& shape);
  /// Called when the step has been issued. Values that no later step uses are freed once the stream has completed all work enqueued so far.
  void let_go(StepId step, Stream& queue);

 private:
  struct Place {
    Datum datum;             // the value of the slot whose bytes views share (root slot); undefined until a step makes it
    bool tracked = false;    // true if AccessChecks knows the memory
    bool is_absent = false;  // true if this is the location of a feed that was left out; only a branch may read such a feed
    int32_t steps_left = 0;  // number of steps that access the location and have not been issued
    std::shared_ptr<const void> watch;
  };

  struct Block {
    std::weak_ptr<Storage> storage;
    int device = 0;
    std::weak_ptr<Storage> reached_for;  // from allocate_reached(): the same memory at the fixed address that stays valid when it moves
  };

  Datum as_slot(LocationId at, SlotId slot, const Datum& root) const;
  Datum reached(int device, const Datum& datum) const;
  Tensor movable(const Tensor& made) const;
  void set(LocationId at, Datum datum, bool tracked, bool from_host);
  bool lies_on(const Tensor& tensor, int device) const;
  void drop(LocationId at, Stream& queue);

  const PlacedSteps& steps_;
  PlacedMemory& memory_;
  const RunStreams& streams_;
  const RunState& state_;
  DeviceIo& io_;
  IdVector<LocationId, Place> places_;
  std::unordered_map<const Storage*, Block> blocks_;  // the memory that allocate() and allocate_reached() have made
};

}  // namespace treadle::exec
