// A run over several devices. The host enqueues work without waiting, except at the end, at a Yield, and for extents that depend on data.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "exec/placed/device_io.h"
#include "exec/placed/issuing.h"
#include "exec/placed/placed_memory.h"
#include "exec/placed/placed_schedule.h"
#include "exec/placed/placed_values.h"
#include "exec/placed/run_streams.h"
#include "exec/placed/step_work.h"
#include "exec/run/feed_binder.h"
#include "exec/run/first_error.h"
#include "exec/run/node_runner.h"
#include "exec/run/output_store.h"
#include "exec/run/run.h"
#include "exec/run/run_state.h"
#include "exec/run/step_cursor.h"

namespace treadle::exec {

/// Each run has its own streams, events and arenas, so that several runs of a program may be in progress at the same time.
class PlacedRun final : public Run {
 public:
  explicit PlacedRun(PlacedSchedule& owner);
  ~PlacedRun() override;

  using Run::start;
  void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control, std::span<const OutputMemory> memory,
             std::span<const int64_t> parent_values) override;
  void set_cache(std::shared_ptr<ValueCache> cache) override { nodes_.set_cache(std::move(cache)); }
  void set_recorder(const RunControl& of) override { control_.recording = of.recording; }
  void feed(size_t input, const Datum& value) override;
  void move_feed(size_t input, const Datum& value) override;
  bool has_output(size_t k) const override;
  Datum output(size_t k) const override { return outputs_.output(k); }
  Datum take_output(size_t k) override;
  /// A step is a kernel or a copy; steps are counted in the order of issue. Returns once all devices have completed the steps.
  bool advance(size_t steps = SIZE_MAX) override;
  size_t steps_left() const override;
  size_t steps_through(InstructionId instruction) const override;
  bool finished() const override { return cursor_.finished(); }
  const Instruction* yield() const override;
  std::vector<Datum> yielded() override;
  void resume(std::span<const Datum> values) override;
  void take_outputs(std::span<Datum> outputs) override;
  void clear() noexcept override;
  void trim() noexcept override {
    issuing_.trim();
    memory_.trim();
  }
  const RunControl& control() const override { return control_; }

  // For PlacedRounds, between start() and take_outputs() instead of advance():
  /// Issues all steps without waiting for them. @param earlier  a run behind whose steps these come; null: there is none
  /// @return false if it has not come to the end, because of an error, which finish() throws, or a Yield
  bool issue_behind(const PlacedRun* earlier);
  /// Waits for the steps. @throws their first error
  void finish();
  /// Uses the arenas on devices of another run of the program, all of whose steps come before this one's. Called before start().
  void share_arenas(const PlacedRun& earlier) { memory_.share_arenas(earlier.memory_); }
  /// Returns true if the run reads all of these feeds that are on devices there, so that they may be in the making.
  bool takes_from_devices(std::span<const Datum> feeds) const;
  /// Returns true if the host has to wait for the steps before take_outputs(): an output is copied to the host, or is a feed on a device,
  /// of which take_outputs() makes a copy.
  bool hands_out_what_devices_copy() const;

  /// Returns the size of a device's arena.
  size_t arena_bytes(int device) const { return memory_.arenas().size_bytes(device); }
  Stream& stream(int i) const { return streams_.at(i); }
  const RecordedBulks& recorded() const { return issuing_.recorded(); }
  /// Returns null if the run keeps to no limit.
  const Residency* residency() const { return memory_.residency(); }

 private:
  void bind(std::span<const Datum> feeds, std::span<const Datum> bound, std::span<const OutputMemory> memory,
            std::span<const int64_t> parent_values);
  template <typename Describe>
  void rethrow_with_memory(Describe&& describe);
  void find_starved();
  const StreamPlan::Step& step_at(size_t position) const { return steps_[steps_.at(position)]; }
  void rethrow();

  const PlacedSteps& steps_;
  const Program& program_;
  RunControl control_;
  RunState state_;  // feeds, binding, and outputs on the host
  FeedBinder feeds_;
  OutputStore outputs_;
  NodeRunner nodes_;
  StepCursor cursor_;
  FirstError error_;
  RunStreams streams_;
  PlacedMemory memory_;
  DeviceIo io_;
  PlacedValues values_;
  PlacedBodies bodies_;
  StepWork work_;
  Issuing issuing_;
};

}  // namespace treadle::exec
