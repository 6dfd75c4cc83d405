// Runs a program over several devices, on the streams and with the copies and fences of a StreamPlan.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "exec/placed/residency.h"
#include "exec/plan/stream_plan.h"
#include "exec/run/executor.h"

namespace treadle::exec {

class PlacedRun;

/// What a program keeps in its devices' memory from run to run: constants, and room for what kernels have packed.
class DeviceConstants {
 public:
  /// Copies them, parameters as the binding has them. @throws Error(resource_exhausted) if a device has no room.
  DeviceConstants(const Binding& binding, const StreamPlan& plan, std::span<const std::shared_ptr<Device>> devices,
                  std::span<const std::unique_ptr<Stream>> streams, bool anywhere);
  ~DeviceConstants();
  DeviceConstants(const DeviceConstants&) = delete;
  DeviceConstants& operator=(const DeviceConstants&) = delete;

  const std::shared_ptr<const ParameterVersion>& parameters() const { return parameters_; }
  const Tensor& at(LocationId location) const { return tensors_[location]; }
  /// Kernels may have packed more forms since. @throws Error(resource_exhausted)
  void reserve_packed();

 private:
  void release_packed() noexcept;
  struct Packed {
    const PackedState* state;
    int device;
    size_t reserved_bytes = 0;
  };
  const std::vector<std::shared_ptr<Device>> devices_;
  const std::shared_ptr<const ParameterVersion> parameters_;  // holds what is packed
  IdVector<LocationId, Tensor> tensors_;
  std::mutex mutex_;            // of packed_
  std::vector<Packed> packed_;  // empty where a Residency counts them
};

/// A program whose plan has been made. Where a limit has to be kept, or a device is full, steps are issued one by one, and what a device
/// has no room for stays with the host (Residency): on devices with a bus.
class PlacedProgram final : public Executor {
 public:
  /// @param program  must outlive this object.
  /// @param devices  the first is the host; each has kernels that are the host's own.
  /// @param plan     of `program`, for so many devices.
  /// @param memory   of the session; null: there are no limits.
  PlacedProgram(const Program& program, std::vector<std::shared_ptr<Device>> devices, StreamPlan plan,
                std::shared_ptr<DeviceMemory> memory = nullptr);
  ~PlacedProgram() override;

  /// As exec::run; beside others, or one after the other where limits are kept or a device is full. It ends when all devices have ended,
  /// also a run that fails.
  /// @throws Error of the first node that failed, which is named.
  void run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound = {},
           std::span<const OutputMemory> memory = {}) override;
  RunHandle take() override;
  void give_back(std::unique_ptr<Run> run) noexcept override;
  std::span<const DeviceCopy> copies() const noexcept override { return copies_; }

  const Program& program() const { return program_; }
  const StreamPlan& plan() const { return plan_; }
  /// For tests: a fence that is gone must be found missing.
  StreamPlan& mutable_plan() { return plan_; }

  // For its runs.

  std::span<const std::shared_ptr<Device>> devices() const { return devices_; }
  const std::shared_ptr<DeviceMemory>& memory() const { return memory_; }
  /// Whether nothing on the host reads the feed, a root slot.
  bool is_only_for_devices(SlotId slot) const { return only_for_devices_[slot] != 0; }
  /// The host's location of an output, a root slot, that one copy makes and nothing reads; kNoLocation: there is none.
  LocationId only_for_caller(SlotId slot) const { return only_for_caller_[slot]; }
  uint32_t record_name(StepId step) const;
  bool has_bus() const;
  /// True if runs keep to limits from the beginning.
  bool keeps_limits() const;
  /// From now on runs do, and constants that were for those that fit make room.
  void note_full();
  /// For runs that keep to none. @throws Error(resource_exhausted)
  std::shared_ptr<DeviceConstants> constants(const Binding& binding, std::span<const std::unique_ptr<Stream>> streams);

 private:
  void find_crossings();
  void name_copies();

  const Program& program_;
  const std::vector<std::shared_ptr<Device>> devices_;
  StreamPlan plan_;
  const std::shared_ptr<DeviceMemory> memory_;
  IdVector<SlotId, uint8_t> only_for_devices_;    // of root slots
  IdVector<SlotId, LocationId> only_for_caller_;  // likewise
  std::vector<DeviceCopy> copies_;
  IdVector<StepId, int32_t> copy_of_;        // an index into copies_; -1: it is a kernel
  std::atomic<bool> is_full_{false};         // a device had no room for all of a run
  std::mutex mutex_;                         // of shared_
  std::shared_ptr<DeviceConstants> shared_;  // null before the first run
  RunPool<PlacedRun> runs_;
};

}  // namespace treadle::exec
