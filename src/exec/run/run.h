// The interface of a run in flight, on the host (frame.h) or on devices (placed_run.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/program/ids.h"
#include "exec/run/run_control.h"
#include "treadle/datum.h"

namespace treadle::exec {

/// Cached outputs of instructions with one output, by name. If the value is defined, the instruction is not executed. If it is undefined,
/// it is set when the instruction has run.
using ValueCache = std::map<std::string, Datum, std::less<>>;

/// A run can stop between any two steps or at a Yield, return to its caller, and continue. A step is an instruction or a copy between
/// devices. After its end or an error it may be started again. Only one thread at a time may use it.
class Run {
 public:
  virtual ~Run() = default;

  /// Starts a run: takes the feeds, and finds or makes memory for all values. Allocates nothing if the extents are those of the previous
  /// run.
  /// @param feeds   one per input of the program. One may be undefined if `control` permits feeding it later, and other feeds or the
  ///                declaration give its extents.
  /// @param bound   empty, or one per output: memory that the caller wants the output in; undefined: none.
  /// @param memory  empty, or one per output: the caller's wishes for its memory.
  /// @throws Error naming the feed, its type and the expected type
  virtual void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
                     std::span<const OutputMemory> memory) = 0;
  /// Sets the cache of values. Called before the first step. Null: none.
  virtual void set_cache(std::shared_ptr<ValueCache> cache) = 0;

  /// Sets the recording of later steps. Called between two steps.
  /// @param of  only its `recording` is used.
  virtual void set_recorder(const RunControl& of) = 0;

  /// Feeds an input that start() was called without. @throws Error(invalid_argument) if it has been fed already, or as start()
  virtual void feed(size_t input, const Datum& value) = 0;
  /// Replaces an input's memory. Called at a Yield. @throws Error(invalid_argument) if the dtype or shape differs
  virtual void move_feed(size_t input, const Datum& value) = 0;
  /// Returns true if all instructions that write output `k` have run, so that output() may be called.
  virtual bool has_output(size_t k) const = 0;
  /// Returns output `k` of the program, before or at the run's end. The run keeps it.
  virtual Datum output(size_t k) const = 0;

  /// Returns output `k` before the run's end for the caller to keep: a copy if later steps or another output use its bytes; otherwise the
  /// value itself, which the run gives up.
  virtual Datum take_output(size_t k) = 0;

  /// Runs at most this number of steps. Stops earlier at a Yield, before a step that reads an input not fed yet, or at the end.
  /// @return true at the end
  /// @throws Error naming the node
  virtual bool advance(size_t steps = SIZE_MAX) = 0;
  /// Returns the number of steps to the next Yield, to a step that reads an input not fed yet, or to the end.
  virtual size_t steps_left() const = 0;
  /// Returns the number of steps until the instruction has run; 0 if it has.
  virtual size_t steps_through(InstructionId instruction) const = 0;
  virtual bool finished() const = 0;

  /// Returns the Yield at which the run has stopped; null if it is at none.
  virtual const Instruction* yield() const = 0;
  /// At a Yield: yielded() returns the values that the run hands out. resume() takes the values that the caller hands in; then the run can
  /// continue.
  virtual std::vector<Datum> yielded() = 0;
  virtual void resume(std::span<const Datum> values) = 0;

  /// At the end: hands over all outputs, one per output of the program. The run keeps none of them.
  virtual void take_outputs(std::span<Datum> outputs) = 0;
  /// Waits for work in flight, then drops all values.
  virtual void clear() noexcept = 0;
  /// Frees the memory that is kept for the next run. Called between runs.
  virtual void trim() noexcept = 0;
  virtual const RunControl& control() const = 0;
};

/// Returns the Yield at which the run has stopped. @throws Error(invalid_argument) if it is at none
const Instruction& expect_yield(const Run& run);
/// Throws the error of a whole run (Executor::run) that reaches a Yield.
[[noreturn]] void throw_stops_at_yield();

}  // namespace treadle::exec
