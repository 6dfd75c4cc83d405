// Tells which instruction, device and locations each step of a stream plan refers to, and in which order steps are issued.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/devices/device.h"
#include "exec/plan/stream_plan.h"
#include "exec/run/executor.h"

namespace treadle::exec {

/// The steps of a program's stream plan. Immutable, and shared by all runs of the program.
class PlacedSteps {
 public:
  /// All arguments must outlive this object.
  PlacedSteps(const Program& program, const StreamPlan& plan, std::span<const std::shared_ptr<Device>> devices);

  const Program& program() const { return program_; }
  const StreamPlan& plan() const { return plan_; }
  /// Returns the devices; the first one is the host.
  std::span<const std::shared_ptr<Device>> devices() const { return devices_; }
  Device& device(int i) const { return *devices_[static_cast<size_t>(i)]; }

  // A position is the number of a step in the order in which the steps are issued.

  size_t size() const { return order_.size(); }
  StepId at(size_t position) const { return order_[position]; }
  size_t position_of(StepId step) const { return position_[step]; }
  /// Returns the steps from `position` to the end of its bulk. A bulk is issued as one piece of work.
  std::span<const StepId> bulk_from(size_t position) const { return std::span(order_).subspan(position, bulk_end_[position] - position); }

  // Look-ups by step:

  const StreamPlan::Step& operator[](StepId step) const { return plan_.steps[step]; }
  const StreamPlan::Location& location(LocationId at) const { return plan_.locations[at]; }
  const Slot& slot(SlotId slot) const { return program_.slots()[slot]; }
  const Instruction& instruction(const StreamPlan::Step& step) const { return program_.instructions()[step.instruction]; }
  bool is_yield(StepId step) const { return !plan_.steps[step].is_copy() && instruction(plan_.steps[step]).is_yield; }
  /// Returns the device on whose stream the step runs. A copy between two devices runs on the device that sends.
  int device_of(const StreamPlan::Step& step) const { return plan_.streams[static_cast<size_t>(step.stream)].device; }
  /// Returns the locations of a kernel's operands, inputs first; kNoLocation for an absent operand.
  std::span<const LocationId> operands(const StreamPlan::Step& step) const;
  std::span<const LocationId> inputs(const StreamPlan::Step& step) const;
  std::span<const LocationId> outputs(const StreamPlan::Step& step) const;

  // Names for profiles:

  std::span<const DeviceCopy> copies() const { return copies_; }
  uint32_t record_name(StepId step) const;
  std::string stream_name(int stream) const;

 private:
  void name_copies();

  const Program& program_;
  const StreamPlan& plan_;
  const std::span<const std::shared_ptr<Device>> devices_;
  std::vector<StepId> order_;
  IdVector<StepId, size_t> position_;
  std::vector<size_t> bulk_end_;  // for each position, the end of its bulk
  std::vector<DeviceCopy> copies_;
  IdVector<StepId, int32_t> copy_of_;  // an index into copies_; -1 if the step is a kernel
};

}  // namespace treadle::exec
