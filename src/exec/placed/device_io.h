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

  IdVector<SlotId, uint8_t> only_for_devices;  ///< for each root slot (a slot with bytes of its own): 1 if no step on the host reads it
  /// For each root slot (a slot with bytes of its own): its location on the host, if one copy makes it and no step reads it.
  IdVector<SlotId, LocationId> only_for_caller;
  IdVector<LocationId, LocationId> copied_to;     ///< for each location on a device: the location in only_for_caller that is copied from it
  IdVector<SlotId, uint8_t> is_copied_to_host;    ///< for each root slot: 1 if a copy makes it on the host
  IdVector<LocationId, StepId> maker;             ///< the first step that writes a location; kNoStep: there is none
  IdVector<SlotId, std::vector<StepId>> readers;  ///< for each input with bytes of its own: all steps that read it, including copies
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

  /// Returns the feed in the memory in which the run will read it. A feed on a device stays there if the run only copies it and all devices
  /// of the run can copy from that device; otherwise this function copies it to the host.
  Datum take_feed(size_t input, const Datum& feed);
  /// Returns true if a feed on a device stays there.
  bool takes_from_device(size_t input, const Tensor& feed) const;
  const Crossings& crossings() const { return crossings_; }
  static Datum from_device(Datum value);
  /// Decides at the start of a run which outputs stay on the device that makes them. An output stays if the caller accepts it on the device
  /// and no step reads its copy on the host. The copy to the host then becomes a copy within the device. All other outputs go to the host.
  /// @param memory  one per output, or empty. Sets `made_in_run` for outputs that stay.
  void choose_outputs(std::span<const Datum> bound, std::vector<OutputMemory>& memory);

  /// Returns true if the output at this location on the host stays on a device: its copy is made within the device instead.
  bool stays(LocationId at) const { return staying_.contains(at); }
  /// Returns true if the caller can receive the memory that the kernel wrote, because the caller has bound no other memory to the output.
  bool takes_over(LocationId at, const Tensor& made) const {
    const auto found = staying_.find(at);
    return found != staying_.end() && (!found->second.is_bound || found->second.made.storage() == made.storage());
  }
  /// Returns the memory in which a kernel makes the value at a location on a device. Undefined if no output stays there, or if the caller's
  /// memory is on another device, which only a copy can write. The caller's memory is used if it is large enough and holds no feed that is
  /// still needed; the output may also follow a feed that it begins with. Otherwise the memory is newly allocated.
  /// @throws Error(resource_exhausted)
  Tensor memory_to_make(LocationId made, DType dtype, const Shape& shape);
  /// Returns the memory for an output that stays on a device after a copy there. @param maker  the device that has made the value
  Tensor memory_to_copy_to(LocationId at, int maker, DType dtype, const Shape& shape);
  /// Returns the host memory to which an earlier copy of this run has already copied the same bytes; undefined if there is none.
  Tensor same_on_host(StepId copy) const;
  void note_on_host(StepId copy, const Tensor& tensor);
  void clear() noexcept;

 private:
  struct Stay {
    Tensor given;                 // the caller's memory for the output; undefined if there is none
    bool is_bound = false;        // true if the output must be in that memory in the end
    bool grows = false;           // true if the caller will pass this memory again for an output that may be larger
    bool has_grown = false;       // true if the caller has given memory or the output begins with an input (see room_to_grow())
    SlotId appends_to = kNoSlot;  // an input that the output starts with; new elements may follow it in its memory
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
  std::vector<std::shared_ptr<const void>> watches_;  // keep the caller's device memory registered with the access checks
};

}  // namespace treadle::exec
