// Issues the steps of a run to the streams of its devices.
#pragma once

#include <cstdint>
#include <span>

#include "exec/placed/placed_memory.h"
#include "exec/placed/placed_steps.h"
#include "exec/placed/placed_values.h"
#include "exec/placed/recorded_bulks.h"
#include "exec/placed/run_streams.h"
#include "exec/placed/step_work.h"
#include "exec/run/first_error.h"
#include "exec/run/node_runner.h"
#include "exec/run/step_cursor.h"
#include "sharing/turn.h"

namespace treadle::exec {

/// A bulk is a sequence of steps that is issued as one piece of work (PlacedSteps::bulk_from). Normally the host issues bulks without
/// waiting for earlier ones. It issues single steps, each after the step before has ended, if an observer or a cache reads the outputs of
/// each node, or if the job decides when a node may run. Under a memory limit, the host issues single steps, too, but without waiting for
/// earlier ones if there is memory for the step's values (Residency).
class Issuing {
 public:
  /// All arguments belong to one run and must outlive this object.
  Issuing(RunStreams& streams, PlacedMemory& memory, PlacedValues& values, StepWork& work, const NodeRunner& nodes, FirstError& error);

  /// Issues the steps from the cursor to `end`, and waits until all devices have done them. If a step fails, the error is noted in `error`
  /// and the cursor stops before `end`.
  void run(StepCursor& cursor, size_t end);
  /// Issues the steps from the cursor to `end`. If one cannot be issued, the error is noted in `error` and the cursor stops before `end`.
  void issue(StepCursor& cursor, size_t end);
  /// Called between runs, when the arenas are freed. Destroys the recorded work, which contains addresses in the arenas.
  void trim() noexcept { recorded_.clear(); }
  const RecordedBulks& recorded() const { return recorded_; }

 private:
  bool goes_one_by_one(const sharing::Turn& turn) const;
  void issue_alone(StepId step, sharing::Turn& turn);
  void issue_within_limits(StepId step, sharing::Turn& turn);
  void prepare(StepId step, sharing::Turn& turn);
  void issue(std::span<const StepId> bulk);
  void issue_kernels(std::span<const StepId> bulk, Stream& queue);
  void enqueue_kernels(std::span<const StepId> bulk, Stream& queue);
  bool submit_again(std::span<const StepId> bulk, Stream& queue);
  void record_launches(std::span<const StepId> bulk, uint64_t since) const;
  void take_up(std::span<const StepId> bulk);
  [[noreturn]] void rethrow_on_device(const StreamPlan::Step& step);

  const PlacedSteps& steps_;
  RunStreams& streams_;
  PlacedMemory& memory_;
  PlacedValues& values_;
  StepWork& work_;
  const NodeRunner& nodes_;
  const RunControl& control_;
  FirstError& error_;
  RecordedBulks recorded_;
};

}  // namespace treadle::exec
