// A program with its stream plan and everything that its runs share. Bodies of If, Loop and Scan have schedules of their own.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>

#include "core/devices/device.h"
#include "exec/placed/device_io.h"
#include "exec/placed/placed_steps.h"
#include "exec/placed/program_memory.h"
#include "exec/run/control_flow.h"
#include "exec/run/executor.h"

namespace treadle::exec {

class PlacedRounds;
class PlacedRun;

class PlacedSchedule {
 public:
  /// @param plan    made for the program of `plans` and these devices. All references must outlive this object.
  /// @param memory  the session's account and limit; null if there is no limit.
  PlacedSchedule(Plans& plans, FramePool& frames, std::span<const std::shared_ptr<Device>> devices, const StreamPlan& plan,
                 const std::shared_ptr<DeviceMemory>& memory);
  ~PlacedSchedule();

  Plans& plans() const { return plans_; }
  /// Returns the pool of frames that run the program and its bodies on the host.
  FramePool& frames() const { return frames_; }
  const PlacedSteps& steps() const { return steps_; }
  const Crossings& crossings() const { return crossings_; }
  ProgramMemory& memory() { return memory_; }
  PlacedSchedule& of_body(const Program& body) { return *bodies_.at(&body); }

  std::unique_ptr<PlacedRun> take();
  void give_back(std::unique_ptr<PlacedRun> run) noexcept;
  std::unique_ptr<PlacedRounds> take_rounds();
  void give_back(std::unique_ptr<PlacedRounds> rounds) noexcept;

 private:
  Plans& plans_;
  FramePool& frames_;
  const PlacedSteps steps_;
  const Crossings crossings_;
  ProgramMemory memory_;
  std::unordered_map<const Program*, std::unique_ptr<PlacedSchedule>> bodies_;
  RunPool<PlacedRun> runs_;
  RunPool<PlacedRounds> rounds_;
};

/// Runs bodies of If, Loop and Scan on the devices. Without a memory limit, operands and results of the bodies can stay on the devices.
class PlacedBodies final : public BodyRunner {
 public:
  /// @param memory  the memory of the surrounding run. Both arguments must outlive this object.
  PlacedBodies(PlacedSchedule& schedule, const PlacedMemory& memory) : schedule_(schedule), memory_(memory) {}
  void run(const Program& body, std::span<const Datum> feeds, std::span<Datum> results, const RunControl& control,
           std::span<const int64_t> parent_values, size_t looked_at) override;
  std::unique_ptr<Rounds> rounds(const Program& body) override;

 private:
  PlacedSchedule& schedule_;
  const PlacedMemory& memory_;
};

}  // namespace treadle::exec
