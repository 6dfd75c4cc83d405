// Runs a program over several devices, on the streams and with the copies and fences of a StreamPlan.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/device.h"
#include "exec/device_executor.h"
#include "exec/stream_plan.h"

namespace treadle::exec {

class PlacedRun;

/// A program whose plan has been made. Everything is issued ahead, to all streams, and the host waits at the end only, and where extents
/// are data. Constants are copied to devices ahead of all runs. One run at a time.
class PlacedProgram final : public DeviceExecutor {
 public:
  /// @param program  must outlive this object.
  /// @param devices  the first is the host; each has kernels that are the host's own.
  /// @param plan     of `program`, for so many devices.
  PlacedProgram(const Program& program, std::vector<std::shared_ptr<Device>> devices, StreamPlan plan);
  ~PlacedProgram() override;

  /// As exec::run. It ends when all devices have ended: also a run that fails.
  /// @throws Error of the first node that failed, which is named.
  void run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound = {}) override;

  /// A run that stops at Yields, in place of run(); of one thread at a time. A new one abandons the one before.
  void start(std::span<const Datum> feeds, const RunControl& control, std::span<const Datum> bound = {});
  /// Runs to the next Yield or the end, which all devices have reached then. @return true at the end.
  bool advance();
  /// Issues so many bulks, or those that are left before the next Yield or the end, and waits for them. @return bulks left before that.
  size_t advance_steps(size_t count);
  size_t steps_left() const;
  /// At a Yield: the values handed out, and those that the run goes on with.
  std::vector<Datum> yielded();
  void resume(std::span<const Datum> values);
  /// At the end.
  void take_outputs(std::span<Datum> outputs);

  const Program& program() const { return program_; }
  const StreamPlan& plan() const { return plan_; }
  /// For tests: a fence that is gone must be found missing.
  StreamPlan& mutable_plan() { return plan_; }
  /// Bytes of the arena of a device in the last run.
  size_t arena_bytes(int device) const {
    return arenas_[static_cast<size_t>(device)].storage ? arenas_[static_cast<size_t>(device)].storage->size_bytes() : 0;
  }
  Stream& stream(int index) const { return *streams_[static_cast<size_t>(index)]; }

 private:
  friend class PlacedRun;
  struct Arena {
    std::vector<int32_t> locations;      // planned ones of the device
    std::vector<size_t> sizes, offsets;  // of those, in that order; sizes are those that the offsets were made for
    std::shared_ptr<Storage> storage;
    bool planned_before = false;
  };
  void copy_constants();
  void place(const Binding& binding);
  void verify(const Binding& binding) const;

  const Program& program_;
  const std::vector<std::shared_ptr<Device>> devices_;
  StreamPlan plan_;
  std::vector<Arena> arenas_;                   // per device
  std::vector<std::byte*> planned_;             // per location: where it is
  std::vector<Tensor> constants_;               // per location
  std::vector<std::shared_ptr<Event>> events_;  // per step; null: nobody waits for it
  std::vector<std::unique_ptr<Stream>> streams_;
  uint64_t generation_ = 0;  // of the binding that the arenas are for
  RunTurns turns_;
  std::unique_ptr<PlacedRun> run_;  // that was begun by start(); goes first
};

}  // namespace treadle::exec
