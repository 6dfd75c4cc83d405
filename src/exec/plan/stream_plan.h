// The order of a program on the streams of several devices: explicit copies where a value crosses devices, and the fences that order them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "exec/plan/device_placement.h"
#include "exec/program/program.h"

namespace treadle::exec {

struct StreamOptions {
  int compute_streams = 1;     ///< of each device: independent branches go to different ones
  size_t max_bulk = SIZE_MAX;  ///< kernels issued at once
};

/// Made once for a program and a placement; nothing in it depends on extents.
struct StreamPlan {
  enum class Queue : uint8_t { compute, copy_in, copy_out };
  struct Stream {
    int device;
    Queue queue;
  };

  /// A value's bytes on one device. Where a value is copied to is a location of its own.
  struct Location {
    enum class Memory : uint8_t {
      planned,   ///< at an offset in the device's arena
      held,      ///< by reference count: outputs, and what only the run knows the size of
      constant,  ///< copied to the device once, or in the program
      given,     ///< a feed or known value, where the host has it
    };
    SlotId slot = kNoSlot;  ///< the root slot; kNoSlot: scratch
    int device = 0;
    Memory memory = Memory::planned;
    BufferId buffer = kNoBuffer;  ///< planned: of the program, whose size it has
    int32_t num_steps = 0;        ///< that touch it
    std::vector<StepId> uses;     ///< planned: all steps that touch it, ascending; the first of them writes it
  };

  struct Step {
    InstructionId instruction = kNoInstruction;             ///< kNoInstruction: a copy
    LocationId source = kNoLocation, target = kNoLocation;  ///< of a copy
    uint32_t first_operand = 0;                             ///< of a kernel: into `operands`, one an operand, kNoLocation for an absent one
    LocationId scratch = kNoLocation;                       ///< location
    int stream = 0;
    bool host_waits = false;    ///< its outputs' extents are known only when it is done
    bool records = false;       ///< its event is waited for
    std::vector<StepId> waits;  ///< fences: steps of other streams that it comes after, none of them implied by another

    bool is_copy() const { return instruction == kNoInstruction; }
  };

  std::vector<Stream> streams;
  IdVector<LocationId, Location> locations;
  IdVector<StepId, Step> steps;  ///< in the order of the program, every copy right before its first reader (outputs: after their writer)
  std::vector<LocationId> operands;
  std::vector<std::vector<StepId>> bulks;  ///< steps that are issued as one piece of work, in the order in which they are issued

  int num_copies() const;
  int num_fences() const;
  /// True if step a is done before step b begins, by the order of streams and the fences.
  bool happens_before(StepId a, StepId b) const { return a != b && clock(b)[static_cast<size_t>(steps[a].stream)] >= position_[a]; }
  /// True if two planned locations of one device may be in use at the same time: neither is done with before the other begins.
  bool conflict(const Location& a, const Location& b) const { return !all_before(a, b) && !all_before(b, a); }

 private:
  friend class StreamPlanner;
  std::span<const int32_t> clock(StepId step) const { return std::span(clocks_).subspan(index_of(step) * streams.size(), streams.size()); }
  bool all_before(const Location& a, const Location& b) const {
    for (StepId use : a.uses)
      if (!happens_before(use, b.uses.front())) return false;
    return true;
  }
  std::vector<int32_t> clocks_;         // per step: of each stream the last position that happens before it, its own included
  IdVector<StepId, int32_t> position_;  // of each step in its stream
};

/// Every step waits for the writers of what it reads, and for the readers of what it writes over; of these fences only those are kept
/// that no other fence, and no order within a stream, implies.
/// @param num_devices  with the host, which is device 0.
StreamPlan plan_streams(const Program& program, const DevicePlacement& placement, int num_devices, const StreamOptions& options = {});

/// One step a line, as `treadle inspect --stage planned` shows it.
/// @param device_names  one per device.
std::string describe(const Program& program, const StreamPlan& plan, std::span<const std::string> device_names);

}  // namespace treadle::exec
