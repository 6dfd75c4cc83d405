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

/// Tells which inputs and outputs of a program need not go through the host. The same for all runs.
struct Crossings {
  explicit Crossings(const PlacedSteps& steps);

  IdVector<SlotId, uint8_t> only_for_devices;    ///< by root slot: 1 if no step on the host reads it
  IdVector<SlotId, LocationId> only_for_caller;  ///< by root slot: its location on the host, if one copy makes it and no step reads it
  /// By copy to the host: the first copy of the same bytes on the same stream, such as that of an output of which this one is a view.
  /// kNoStep: there is no other. All but the first are only for the caller.
  IdVector<StepId, StepId> first_of_same;

 private:
  void find_same_bytes(const PlacedSteps& steps);
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
  /// Decides at the start of a run which outputs stay on the device that makes them: those that the caller wants or accepts there, and
  /// whose bytes only one copy to the host would read. That copy is then made within the device. All other outputs go to the host.
  /// @param memory  one per output, or empty. Sets `made_in_run` for outputs that stay.
  void choose_outputs(std::span<const Datum> bound, std::vector<OutputMemory>& memory);

  /// True if the copy to this location on the host is made within the device instead.
  bool stays(LocationId at) const { return staying_.contains(at); }
  /// True if the output that stays may lie in the memory where it was made, as the caller has given none.
  bool takes_over(LocationId at) const {
    const auto found = staying_.find(at);
    return found != staying_.end() && !found->second.defined();
  }
  /// Returns the memory for an output that stays on a device: the caller's, if it is large enough and the device reaches it; otherwise new
  /// memory.
  /// @param maker  the device that makes the output. @throws Error(resource_exhausted)
  Tensor memory_for(LocationId at, int maker, DType dtype, const Shape& shape);
  /// Returns where the run's earlier copies to the host have put the bytes that this one copies; undefined: nowhere.
  Tensor same_on_host(StepId copy) const;
  void note_on_host(StepId copy, const Tensor& tensor);
  void clear() noexcept;

 private:
  void watch(int device, const Tensor& tensor);

  const Crossings& crossings_;
  const PlacedSteps& steps_;
  const PlacedMemory& memory_;
  const RunState& state_;
  const RunControl& control_;
  std::unordered_map<LocationId, Tensor> staying_;    // outputs that stay, with the caller's memory if there is any
  std::unordered_map<StepId, Tensor> on_host_;        // by Crossings::first_of_same
  std::vector<std::shared_ptr<const void>> watches_;  // handles that keep the caller's memory on devices known to the access checks
};

}  // namespace treadle::exec
