// The values of a run on devices: the bytes of each location, from the step that makes it to the last step that reads it.
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

class PlacedValues {
 public:
  /// @param state  has the run's binding and feeds, and its outputs on the host.
  PlacedValues(PlacedMemory& memory, const RunStreams& streams, const RunState& state, DeviceIo& io);

  /// Called at the start of a run, after clear().
  void begin();
  void clear() noexcept;

  /// Returns a slot's value at a location, undefined if no step has made it. The tensor may refer to the run's memory without owning it.
  Datum value(LocationId at, SlotId slot) const;
  /// The root's value at a held location.
  const Datum& held(LocationId at) const { return places_[at].datum; }
  /// Returns the value on the host, copied from the device if need be. @pre the host has waited for the step that makes it
  Datum on_host(LocationId at, SlotId slot) const;
  /// True if accesses to the location's memory can be checked (AccessChecks).
  bool is_tracked(LocationId at) const;

  /// Makes memory for the outputs of a step, if their shapes are known and they have none yet.
  /// @throws Error(resource_exhausted)
  void make_outputs(const StreamPlan::Step& step);
  /// Makes memory for a held location. Outputs on the host get the memory that the caller receives. @throws Error(resource_exhausted)
  void make(LocationId at, DType dtype, const Shape& shape);
  /// Gives a held location memory that was made elsewhere on a device.
  void make_in(LocationId at, Tensor memory) { set(at, std::move(memory), /*tracked=*/true, /*from_host=*/false); }
  /// The location has no value in this run.
  void leave_out(LocationId at) { places_[at].is_absent = true; }
  /// Sets the value of a held location, copying it to the location's device if needed. @throws Error(resource_exhausted)
  void hold(LocationId at, Datum made);
  /// Allocates on a device. hold() recognises the memory and does not copy from it. @throws Error(resource_exhausted)
  Tensor allocate(int device, DType dtype, const Shape& shape);
  /// Keeps the values of held locations until the stream has done its work so far.
  void keep(std::span<const LocationId> locations, Stream& queue) const;
  /// Like allocate(), at the address at which a kernel finds the memory now.
  Tensor allocate_reached(int device, DType dtype, const Shape& shape);
  /// Called when the step has been issued. Values that no further step touches are freed once the stream has done its work so far.
  void let_go(StepId step, Stream& queue);

 private:
  struct Place {
    Datum datum;             // the root's value; undefined until it is made
    bool tracked = false;    // AccessChecks knows the memory
    bool is_absent = false;  // a feed that was left out, since only a branch reads it
    int32_t steps_left = 0;  // steps that touch the location and have not been issued
    std::shared_ptr<const void> watch;
  };

  struct Block {
    std::weak_ptr<Storage> storage;
    int device = 0;
    std::weak_ptr<Storage> reached_for;  // of allocate_reached(): the memory whose present address this is
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
  std::unordered_map<const Storage*, Block> blocks_;  // what allocate() made
};

}  // namespace treadle::exec
