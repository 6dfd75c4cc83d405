// Keeps feeds and outputs on a device between runs. A feed that is on the device already, or an output that the caller wants there, is not
// copied through the host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "exec/placed/placed_memory.h"
#include "exec/placed/placed_steps.h"
#include "exec/run/run_control.h"
#include "exec/run/run_state.h"

namespace treadle::exec {

/// Tells which inputs and outputs of a program need not go through the host. It is the same for all runs. A root slot is a value with bytes
/// of its own; other slots are views of a root slot.
struct Crossings {
  explicit Crossings(const PlacedSteps& steps);

  IdVector<SlotId, uint8_t> only_for_devices;  ///< for each root slot: 1 if no step on the host reads it
  /// For each root slot: its location on the host, if one copy makes it and no step reads it.
  IdVector<SlotId, LocationId> only_for_caller;
  IdVector<LocationId, LocationId> copied_to;     ///< for each location on a device: the location in only_for_caller that is copied from it
  IdVector<LocationId, StepId> maker;             ///< the first step that writes a location; kNoStep: there is none
  IdVector<SlotId, std::vector<StepId>> readers;  ///< for each root slot of an input: all steps that read it, including copies
  /// For each copy to the host: the first copy of the same bytes on the same stream, for example if one output is a view of another.
  /// kNoStep: no other copy has the same bytes. No step reads the results of the copies after the first one; only the caller does.
  IdVector<StepId, StepId> first_of_same;

 private:
  void find_same_bytes(const PlacedSteps& steps);
  void find_readers(const PlacedSteps& steps);
};

/// The feeds and outputs of one run.
class DeviceIo {
 public:
  /// All arguments must outlive this object.
  DeviceIo(const Crossings& crossings, const PlacedMemory& memory, const RunState& state, const RunControl& control);

  /// Returns the feed as the run reads it. It stays on its device if only copies read it, and all devices of the run can copy from there;
  /// otherwise this copies it to the host.
  Datum take_feed(size_t input, const Datum& feed);
  static Datum from_device(Datum value);
  /// Decides at the start of a run which outputs stay on the device that makes them. An output stays if the caller wants or accepts it
  /// there and no step reads its copy on the host. The step that would copy it to the host copies it within the device instead. All other
  /// outputs go to the host.
  /// @param memory  one per output, or empty. Sets `made_in_run` for outputs that stay.
  void choose_outputs(std::span<const Datum> bound, std::vector<OutputMemory>& memory);

  /// Returns true if the copy to this location on the host is made within the device instead.
  bool stays(LocationId at) const { return staying_.contains(at); }
  /// Returns true if the output that stays may be in the memory in which it was made, because the caller has bound no other.
  bool takes_over(LocationId at, const Tensor& made) const {
    const auto found = staying_.find(at);
    return found != staying_.end() && (!found->second.is_bound || found->second.made.storage() == made.storage());
  }
  /// Returns the memory in which a kernel makes the value at a location on a device. Undefined if no output stays there, or if the caller's
  /// memory is on another device, into which only a copy may write. The memory is the caller's if it is large enough. If a feed lies in it,
  /// either no step may read the feed after the output is made, or the output must begin with the feed. Otherwise the memory is new.
  /// @throws Error(resource_exhausted)
  Tensor memory_to_make(LocationId made, DType dtype, const Shape& shape);
  /// Returns the memory for an output that stays on a device after a copy there. @param maker  the device that has made the value
  Tensor memory_to_copy_to(LocationId at, int maker, DType dtype, const Shape& shape);
  /// Returns the memory in which the run's earlier copies to the host have put the bytes that this copy copies; undefined if there is none.
  Tensor same_on_host(StepId copy) const;
  void note_on_host(StepId copy, const Tensor& tensor);
  void clear() noexcept;

 private:
  struct Stay {
    Tensor given;                 // the caller's memory for the output; undefined if there is none
    bool is_bound = false;        // true if the output must be in that memory in the end
    bool grows = false;           // true if the caller will offer its memory again, for an output that may be larger
    bool has_grown = false;       // an argument of room_to_grow(): true if the caller has given memory or the output begins with an input
    SlotId appends_to = kNoSlot;  // an input with which the output begins, and after whose end the memory may be written
    Tensor made;                  // the memory that memory_to_make() has returned
  };

  void watch(int device, const Tensor& tensor);
  Tensor given_memory(const Stay& stay, int maker, DType dtype, const Shape& shape) const;
  Tensor new_memory(const Stay& stay, int maker, DType dtype, const Shape& shape) const;
  Tensor behind_feed(const Stay& stay, LocationId made, DType dtype, const Shape& shape) const;
  bool may_write_over_feeds(LocationId made, const Tensor& memory) const;
  bool may_take_over(LocationId made, SlotId input) const;

  const Crossings& crossings_;
  const PlacedSteps& steps_;
  const PlacedMemory& memory_;
  const RunState& state_;
  const RunControl& control_;
  std::unordered_map<LocationId, Stay> staying_;      // outputs that stay on a device, by their location on the host
  std::unordered_map<StepId, Tensor> on_host_;        // copies on the host, by Crossings::first_of_same
  std::vector<std::shared_ptr<const void>> watches_;  // handles by which the access checks know the caller's memory on devices
};

}  // namespace treadle::exec
