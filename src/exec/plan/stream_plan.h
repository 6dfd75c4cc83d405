// Schedules a program on the streams of several devices. Copies between devices are explicit steps; fences order steps on different
// streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "exec/plan/device_placement.h"
#include "exec/program/program.h"

namespace treadle::exec {

struct StreamOptions {
  int compute_streams = 1;     ///< compute streams per device; independent branches of the graph use different streams
  size_t max_bulk = SIZE_MAX;  ///< maximum number of kernels that are issued as one piece of work
  std::vector<bool> at_once;   ///< for each device: Device::calls_work_at_once(); empty: false for all
};

/// The streams, copies and fences of a program. Made once for a program and its placement, independently of extents.
struct StreamPlan {
  enum class Queue : uint8_t { compute, copy_in, copy_out };
  struct Stream {
    int device;
    Queue queue;
  };

  /// The bytes of a value on one device. A copy of the value on another device is another location.
  struct Location {
    enum class Memory : uint8_t {
      planned,   ///< at an offset in the arena of the device
      held,      ///< in reference-counted memory: outputs, and values whose size is known only during the run
      constant,  ///< a constant; devices get one copy for all runs
      given,     ///< a feed or known value in the host's memory
    };
    SlotId slot = kNoSlot;  ///< the value's root slot (views share its bytes); kNoSlot: the location is scratch memory of a kernel
    int device = 0;
    Memory memory = Memory::planned;
    BufferId buffer = kNoBuffer;  ///< for planned memory: the program's buffer, which tells the size
    int32_t num_steps = 0;        ///< number of steps that access the location
    std::vector<StepId> uses;     ///< for planned memory: all steps that access it, ascending; the first one writes it
  };

  struct Step {
    InstructionId instruction = kNoInstruction;             ///< kNoInstruction if the step is a copy
    LocationId source = kNoLocation, target = kNoLocation;  ///< used if the step is a copy
    uint32_t first_operand = 0;        ///< for a kernel: index into `operands`: one location per operand, kNoLocation if it is absent
    LocationId scratch = kNoLocation;  ///< used if the step is a kernel
    int stream = 0;
    /// True if the host waits for the step: it reads the copied value, or extents of outputs that are known only after the step.
    bool host_waits = false;
    bool records = false;       ///< true if the step records an event because another step waits for it
    std::vector<StepId> waits;  ///< fences: steps on other streams that must end first, without those implied by another fence

    bool is_copy() const { return instruction == kNoInstruction; }
  };

  std::vector<Stream> streams;
  IdVector<LocationId, Location> locations;
  /// In the program's order. Each copy is right before its first reader; copies of outputs to the host follow the step that writes them.
  IdVector<StepId, Step> steps;
  std::vector<LocationId> operands;
  std::vector<std::vector<StepId>> bulks;                   ///< groups of steps that are issued as one piece of work, in the order of issue
  std::map<InstructionId, std::vector<StreamPlan>> bodies;  ///< the plans of the bodies of each If, Loop and Scan

  int num_copies() const;
  int num_fences() const;
  /// Returns true if the order within streams and the fences ensure that step a ends before step b begins.
  bool happens_before(StepId a, StepId b) const { return a != b && clock(b)[static_cast<size_t>(steps[a].stream)] >= position_[a]; }
  /// Returns true if two planned locations on one device may be in use at the same time. Then they must not share bytes.
  bool conflict(const Location& a, const Location& b) const { return !all_before(a, b) && !all_before(b, a); }

 private:
  friend class StreamPlanner;
  std::span<const int32_t> clock(StepId step) const { return std::span(clocks_).subspan(index_of(step) * streams.size(), streams.size()); }
  bool all_before(const Location& a, const Location& b) const {
    for (StepId use : a.uses)
      if (!happens_before(use, b.uses.front())) return false;
    return true;
  }
  // Vector clocks. For each step and stream: position of the last step on that stream that is, or happens before, this step.
  std::vector<int32_t> clocks_;
  IdVector<StepId, int32_t> position_;  // position of each step on its stream
};

/// Makes the plan. A step comes after the writers of the values it reads, and after the readers of the values it overwrites. It gets a
/// fence for each of these steps, unless another fence or the order within a stream implies it.
/// @param num_devices  includes the host, which is device 0
StreamPlan plan_streams(const Program& program, const DevicePlacement& placement, int num_devices, const StreamOptions& options = {});

/// Returns the plan as text, one step per line, as `treadle inspect --stage planned` shows it.
/// @param device_names  one per device
std::string describe(const Program& program, const StreamPlan& plan, std::span<const std::string> device_names);

}  // namespace treadle::exec
