// Runs that can pause between two nodes and continue later: the base of partial runs and joint modules.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/memory/memory_gate.h"
#include "exec/run/executor.h"
#include "session/observe.h"
#include "session/runtime.h"

namespace treadle {

/// A run that can pause. If it has a deadline, a helper thread executes it and shares this object, which may therefore outlive its client.
/// Not thread-safe.
class StoppableRun : public std::enable_shared_from_this<StoppableRun> {
 public:
  /// @param options  may be null; must live as long as the run. Its deadline counts from this call.
  /// @param tag      used if the options have no tag.
  StoppableRun(std::shared_ptr<const Runtime> runtime, std::shared_ptr<const Executable> executable, const RunOptions* options,
               std::shared_ptr<const Monitor> monitor, std::string tag);
  ~StoppableRun();

  /// Seeds random operators with `number` instead of the run's number. Call it before start().
  void draw_by(uint64_t number) { control_.run_id = number; }
  /// Starts the run.
  /// @param feeds     one per input; undefined ones are given later by feed().
  /// @param compiled  true: the executable was compiled for this run.
  void start(std::vector<Datum> feeds, std::span<const Datum> bound, std::shared_ptr<exec::ValueCache> cache, bool compiled);
  /// Continues the run as exec::Run::advance() does, with hooks around it.
  /// @throws Error(timed_out) if a node did not return before the deadline, and in every later call
  bool advance(size_t steps = SIZE_MAX);
  /// When the run has stopped at a Yield: supplies its outputs, so that advance() can continue.
  void resume(std::span<const Datum> values);
  /// Supplies an input that was undefined at the start.
  /// @throws as exec::Run::feed
  void feed(size_t input, Datum value);
  /// See exec::Run::move_feed().
  void move_feed(size_t input, const Datum& value) { run().move_feed(input, value); }
  /// Returns true if output `k` of the executable has been computed.
  bool has_output(size_t k) const;
  Datum output(size_t k) const;
  /// See exec::Run::take_output().
  Datum take_output(size_t k);
  /// Returns the requested outputs. Must be called when the run has ended.
  std::vector<Datum> take_outputs();

  /// Returns the run. @throws Error(timed_out) if the run passed its deadline: it then belongs to the helper thread.
  exec::Run& run() const;
  const Executable& executable() const { return *executable_; }

 private:
  /// Counts the bytes of values for the process's metrics.
  void count(std::span<const Datum> inputs, std::span<const Datum> outputs) const;

  const std::shared_ptr<const Runtime> runtime_;
  const std::shared_ptr<const Executable> executable_;
  const std::shared_ptr<const Monitor> monitor_;
  std::shared_ptr<ThreadPool> pool_;  // keeps the pool of the options alive
  const RunOptions* const options_;
  const std::string tag_;
  exec::RunControl control_;
  exec::Caller caller_;
  std::optional<exec::MemoryGate::Pass> pass_;
  std::optional<RunObserver> observer_;
  exec::RunHandle run_;
  bool left_behind_ = false, compiled_ = false, has_ended_ = false;
};

}  // namespace treadle
