// The interface of a run, on the host (frame.h) or on devices (placed_run.h).
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

/// Cached outputs, by name, of instructions with one output. If an entry is defined, the instruction is not executed. If it is undefined,
/// it is set to the output when the instruction has run.
using ValueCache = std::map<std::string, Datum, std::less<>>;

/// A run can stop between any two steps or at a Yield, return to its caller, and continue later. A step is an instruction or a copy between
/// devices. After a run has ended or failed, the object can be started again. Only one thread at a time may use it.
class Run {
 public:
  virtual ~Run() = default;

  /// Starts a run: takes the feeds, and finds or makes memory for all values. Allocates nothing if the extents are the same as in the
  /// previous run.
  /// @param feeds   one per input of the program. A feed may be undefined if `control` permits feeding it later, and if other feeds or the
  /// declaration determine its extents.
  /// @param bound   empty, or one per output: memory in which the caller wants the output; undefined: any.
  /// @param memory  empty, or one per output: the kind of memory that the caller wants for it.
  /// @param parent_values  for a body: values of the symbols in the surrounding run
  /// @throws Error naming the feed, its type and the expected type
  virtual void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
                     std::span<const OutputMemory> memory, std::span<const int64_t> parent_values) = 0;
  void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control, std::span<const OutputMemory> memory) {
    start(feeds, bound, control, memory, {});
  }
  /// Sets the cache of outputs. Called before the first step. Null: no cache.
  virtual void set_cache(std::shared_ptr<ValueCache> cache) = 0;

  /// Sets how later steps are recorded. Called between two steps.
  /// @param of  only its member `recording` is used.
  virtual void set_recorder(const RunControl& of) = 0;

  /// Feeds an input that was missing in start(). @throws Error(invalid_argument) as start(), or if the input has been fed already
  virtual void feed(size_t input, const Datum& value) = 0;
  /// Replaces an input's memory. Called at a Yield. @throws Error(invalid_argument) if the dtype or shape differs
  virtual void move_feed(size_t input, const Datum& value) = 0;
  /// Returns true if all instructions that write output `k` have run, so that output() may be called.
  virtual bool has_output(size_t k) const = 0;
  /// Returns output `k` of the program, during the run or at its end. The run keeps the value.
  virtual Datum output(size_t k) const = 0;

  /// Returns output `k` during the run, for the caller to keep. It is a copy if later steps or another output use its bytes; otherwise it
  /// is the value itself, which the run then no longer holds.
  virtual Datum take_output(size_t k) = 0;

  /// Runs at most this number of steps. Stops earlier at a Yield, before a step whose input has not been fed yet, or at the end.
  /// @return true if the run has reached its end
  /// @throws Error naming the node
  virtual bool advance(size_t steps = SIZE_MAX) = 0;
  /// Returns the number of steps up to the next Yield, the next step whose input has not been fed yet, or the end.
  virtual size_t steps_left() const = 0;
  /// Returns the number of steps to run until this instruction is done; 0 if it is done already.
  virtual size_t steps_through(InstructionId instruction) const = 0;
  virtual bool finished() const = 0;

  /// Returns the Yield node at which the run has stopped; null if it has not stopped at one.
  virtual const Instruction* yield() const = 0;
  /// Called when the run has stopped at a Yield. yielded() returns the values that the run hands out. resume() takes the values that the
  /// caller hands back, and the run can continue.
  virtual std::vector<Datum> yielded() = 0;
  virtual void resume(std::span<const Datum> values) = 0;

  /// Called at the end of the run. Hands all outputs to the caller; the run keeps none of them.
  virtual void take_outputs(std::span<Datum> outputs) = 0;
  /// Waits for work that is still running, then drops all values.
  virtual void clear() noexcept = 0;
  /// Frees the memory that is kept for the next run. Called between runs.
  virtual void trim() noexcept = 0;
  virtual const RunControl& control() const = 0;
};

/// Returns the Yield node at which the run has stopped. @throws Error(invalid_argument) if it has not stopped at one
const Instruction& expect_yield(const Run& run);
/// Throws an error: the program has reached a Yield in a run that cannot stop (Executor::run).
[[noreturn]] void throw_stops_at_yield();

}  // namespace treadle::exec
