// One run of a program in flight, however it is done: on the host (frame.h), or on the streams of devices (placed_run.h).
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

/// Values of instructions with one output, by name. One that is there replaces the computation; an undefined one is filled in when the
/// instruction has run.
using ValueCache = std::map<std::string, Datum, std::less<>>;

/// It outlives a call, so that a run can stop between any two steps, or at a Yield, and go on. A step is an instruction, or a copy between
/// devices. After its end, or an error, it may be started again. One thread at a time.
class Run {
 public:
  virtual ~Run() = default;

  /// Takes the feeds and finds where everything lies. Allocates nothing if the extents are those of the run before.
  /// @param feeds   one per input of the program. Undefined: fed later, where `control` says so and other feeds or the declaration tell
  ///                its extents; otherwise an error.
  /// @param bound   empty, or one per output: memory that the caller wants the output in (undefined: none).
  /// @param memory  empty, or one per output.
  /// @throws Error naming the feed, its type and what was expected.
  virtual void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
                     std::span<const OutputMemory> memory) = 0;
  /// Before the first step. Outlives the run; null: none.
  virtual void set_cache(std::shared_ptr<ValueCache> cache) = 0;

  /// Between two steps: the next ones are recorded as `of` says, which otherwise is the control that the run has.
  virtual void set_recorder(const RunControl& of) = 0;

  /// Gives an input that was not fed at the start. @throws Error(invalid_argument) for one that was, and as start()
  virtual void feed(size_t input, const Datum& value) = 0;
  /// At a Yield: the input's elements lie elsewhere from now on. @throws Error(invalid_argument) for another dtype or shape.
  virtual void move_feed(size_t input, const Datum& value) = 0;
  /// Whether all that writes output `k` has run, so that output() may be asked for it.
  virtual bool has_output(size_t k) const = 0;
  /// Of the program, before the end or at it. The run keeps it.
  virtual Datum output(size_t k) const = 0;

  /// The same for good, before the end: a copy if later steps touch its bytes, or another output has them; otherwise the run lets go of it.
  virtual Datum take_output(size_t k) = 0;

  /// Runs up to so many steps, to a Yield, to what reads an input that is still to be fed, or to the end. @return true at the end.
  /// @throws Error that names the node
  virtual bool advance(size_t steps = SIZE_MAX) = 0;
  /// Steps before the next Yield, before what reads an input that is still to be fed, or before the end.
  virtual size_t steps_left() const = 0;
  /// Steps until the instruction has run; 0: it has.
  virtual size_t steps_through(InstructionId instruction) const = 0;
  virtual bool finished() const = 0;

  /// The Yield that the run has stopped at; null if it has not.
  virtual const Instruction* yield() const = 0;
  /// At a Yield: the values handed out, and what to hand in before the run goes on.
  virtual std::vector<Datum> yielded() = 0;
  virtual void resume(std::span<const Datum> values) = 0;

  /// At the end: one per output of the program. The run keeps none of them.
  virtual void take_outputs(std::span<Datum> outputs) = 0;
  /// Drops everything that the run holds; waits for what is under way.
  virtual void clear() noexcept = 0;
  /// Lets go of memory that is kept for the next run, between runs.
  virtual void trim() noexcept = 0;
  virtual const RunControl& control() const = 0;
};

/// The Yield that the run has stopped at. @throws Error(invalid_argument) if it has not.
const Instruction& expect_yield(const Run& run);
/// Of a whole run.
[[noreturn]] void throw_stops_at_yield();

}  // namespace treadle::exec
