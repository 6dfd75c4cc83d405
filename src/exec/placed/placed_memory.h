// Manages the memory of one run on its devices, with or without a limit: arenas, constants, and separate blocks for other values.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "exec/placed/device_arenas.h"
#include "exec/placed/program_memory.h"
#include "exec/placed/residency.h"
#include "exec/placed/run_streams.h"
#include "exec/run/run_control.h"

namespace treadle::exec {

class PlacedMemory {
 public:
  /// @param of_program  holds the constants, which all runs without a limit share
  /// @param control     the control of the run
  PlacedMemory(ProgramMemory& of_program, const RunStreams& streams, const RunControl& control);

  const ProgramMemory& of_program() const { return of_program_; }
  const PlacedSteps& steps() const { return steps_; }

  /// Called at the start of a run: gives planned values and constants their addresses. If they do not fit into a device that can use the
  /// host's memory, this run and later ones treat the device's size as a limit (Residency).
  /// @throws Error(resource_exhausted)
  void begin(const Binding& binding);
  void end() noexcept;
  /// Uses the arenas on devices of another run, all of whose steps come before this one's. Does nothing if one of the two keeps to limits.
  void share_arenas(const PlacedMemory& earlier) {
    if (!residency_ && !earlier.residency_) arenas_.share(earlier.arenas_);
  }
  /// Frees the arenas. Called between runs.
  void trim() noexcept { arenas_.trim(); }

  /// Returns the object that moves values between memories; null if the run has no limit to keep.
  Residency* residency() const { return residency_.get(); }
  const DeviceArenas& arenas() const { return arenas_; }
  /// Returns the device's copy of a constant; undefined for other locations. @pre has_constants()
  const Tensor& constant(LocationId at) const { return constants_->at(at); }
  bool has_constants() const { return constants_ != nullptr; }
  /// Allocates new memory on a device. @throws Error(resource_exhausted)
  std::shared_ptr<Storage> allocate(int device, size_t size_bytes) const;
  /// Returns the address at which work enqueued now finds contents that may have moved (Bus::reach). @throws Error(resource_exhausted)
  std::byte* reach(int device, std::byte* data, size_t size_bytes) const;

  /// Returns the session's allocator, which must be told when bytes of an arena are reused. Null if the session has none, or if a Residency
  /// moves values between memories.
  Allocator* allocator() const;
  /// Returns the arena ranges of values and scratch memory that this step is the first to use. The allocator is told of these ranges before
  /// the step writes them. Empty if there is no allocator to tell, or if the host cannot write to the device's memory.
  std::vector<std::span<std::byte>> newly_used(StepId step, const Binding& binding) const;

 private:
  bool begin_without_limits(const Binding& binding);
  void keep_to_limits();
  void renew_arenas() const;

  ProgramMemory& of_program_;
  const PlacedSteps& steps_;
  const RunStreams& streams_;
  const RunControl& control_;
  DeviceArenas arenas_;
  std::shared_ptr<DeviceConstants> constants_;  // runs without a limit share them; null before the first run
  std::unique_ptr<Residency> residency_;
};

}  // namespace treadle::exec
