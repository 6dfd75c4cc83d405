// Runs a program over several devices, on the streams and with the copies and fences of a StreamPlan.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/devices/device.h"
#include "exec/placed/placed_schedule.h"
#include "exec/run/executor.h"

namespace treadle::exec {

/// Executes a program by its stream plan. If a limit must be kept, or a device is full, a run issues one step at a time, and values for
/// which the device has no room stay in the host's memory (Residency). That needs devices with a bus.
class PlacedProgram final : public Executor {
 public:
  /// @param program  must outlive this object.
  /// @param devices  the first is the host. All devices can run the host's kernels.
  /// @param plan     made for `program` and this number of devices.
  /// @param memory   the session's account and limit; null if there is no limit.
  PlacedProgram(const Program& program, std::vector<std::shared_ptr<Device>> devices, StreamPlan plan,
                const std::shared_ptr<DeviceMemory>& memory = nullptr);
  ~PlacedProgram() override;

  /// Runs the program. Several threads may call it at the same time; their runs take turns if a limit is kept or a device is full. A run
  /// returns when all devices have ended their work, even if it fails. @throws Error of the first node that failed, with its name
  void run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound = {},
           std::span<const OutputMemory> memory = {}) override;
  RunHandle take() override;
  void give_back(std::unique_ptr<Run> run) noexcept override;
  std::span<const DeviceCopy> copies() const noexcept override { return schedule_.steps().copies(); }

  const Program& program() const { return program_; }
  const StreamPlan& plan() const { return plan_; }
  const PlacedSteps& steps() const { return schedule_.steps(); }
  /// Returns the plan for tests that remove a fence. The checks of accesses must then report an error.
  StreamPlan& mutable_plan() { return plan_; }

 private:
  const Program& program_;
  const std::vector<std::shared_ptr<Device>> devices_;
  StreamPlan plan_;
  PlacedSchedule schedule_;
};

}  // namespace treadle::exec
