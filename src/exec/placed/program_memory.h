// The device memory that the runs of a program share: constants, and blocks that kernels have packed.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "exec/placed/device_memory.h"
#include "exec/placed/placed_steps.h"
#include "exec/plan/binding.h"

namespace treadle::exec {

/// Where new memory for a device may be allocated.
enum class Room : uint8_t {
  on_device,  ///< only in the device's own memory; the allocation fails if that is full
  anywhere,   ///< in the memory of the device or of the host, for devices with a bus; a Residency chooses later
};
/// Allocates memory for a device. @throws Error(resource_exhausted) if the memory is full
std::shared_ptr<Storage> allocate_on(Device& device, size_t size_bytes, Room room);

/// Copies of constants on devices, and reserved device memory for blocks that kernels have packed.
class DeviceConstants {
 public:
  /// Copies all constants, and the binding's version of the parameters.
  /// @param room  with Room::anywhere, no memory is reserved for packed blocks, because a Residency counts them.
  /// @throws Error(resource_exhausted) if a device's memory is full.
  DeviceConstants(const PlacedSteps& steps, const Binding& binding, std::span<const std::unique_ptr<Stream>> streams, Room room);
  ~DeviceConstants();
  DeviceConstants(const DeviceConstants&) = delete;
  DeviceConstants& operator=(const DeviceConstants&) = delete;

  const std::shared_ptr<const ParameterVersion>& parameters() const { return parameters_; }
  const Tensor& at(LocationId location) const { return tensors_[location]; }
  /// Reserves device memory for weights that kernels have packed since the last call. @throws Error(resource_exhausted)
  void reserve_packed();

 private:
  struct Packed {
    const PackedState* state;
    int device;
    size_t reserved_bytes = 0;
  };
  void copy_inputs(const StreamPlan::Step& step, const Binding& binding, std::span<const std::unique_ptr<Stream>> streams, Room room);
  void note_packed(const StreamPlan::Step& step, const Binding& binding);
  void release_packed() noexcept;

  const PlacedSteps& steps_;
  const std::shared_ptr<const ParameterVersion> parameters_;  // keeps the packed blocks alive
  IdVector<LocationId, Tensor> tensors_;
  std::mutex mutex_;            // guards packed_
  std::vector<Packed> packed_;  // empty with Room::anywhere
};

/// Device memory that all runs of one program share. Thread-safe.
class ProgramMemory {
 public:
  /// @param steps  must outlive this object
  /// @param of_session  account and limit of the session; null if there is no limit
  ProgramMemory(const PlacedSteps& steps, std::shared_ptr<DeviceMemory> of_session)
      : steps_(steps), of_session_(of_session ? std::move(of_session) : std::make_shared<DeviceMemory>()) {}

  const PlacedSteps& steps() const { return steps_; }
  const std::shared_ptr<DeviceMemory>& of_session() const { return of_session_; }
  bool has_bus() const;
  /// Returns true if every run has to keep to a memory limit, that of the session or that of the job.
  bool keeps_limits() const { return (of_session_->job || of_session_->has_limit) && has_bus(); }
  /// Returns true if a device has been found too small for a run.
  bool is_full() const { return is_full_.load(std::memory_order_relaxed); }
  /// Returns the constants that runs without a limit share; copied again after parameters have changed. @throws Error(resource_exhausted)
  void note_full();
  /// Returns the constants for runs without a limit, made anew when the parameters have changed. @throws Error(resource_exhausted)
  std::shared_ptr<DeviceConstants> constants(const Binding& binding, std::span<const std::unique_ptr<Stream>> streams);

 private:
  const PlacedSteps& steps_;
  const std::shared_ptr<DeviceMemory> of_session_;
  std::atomic<bool> is_full_{false};
  std::mutex mutex_;                            // guards constants_
  std::shared_ptr<DeviceConstants> constants_;  // null before the first run
};

}  // namespace treadle::exec
