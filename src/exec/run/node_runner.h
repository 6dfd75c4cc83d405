// Runs single instructions of a run, with all that surrounds a kernel: cancellation, turns of jobs, observers, records, cached values.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/threads/thread_pool.h"
#include "exec/plan/plans.h"
#include "exec/run/run.h"
#include "exec/run/run_control.h"
#include "exec/run/run_instruction.h"
#include "exec/run/run_state.h"
#include "graph/evaluate.h"
#include "sharing/turn.h"

namespace treadle::exec {

/// Runs instructions on the calling thread. The caller's schedule decides which instruction may run next.
class NodeRunner {
 public:
  /// @param state, control  state and control of the run; must outlive the runner
  /// @param frames  the pools of frames for the program and its bodies; must outlive the runner
  NodeRunner(RunState& state, const RunControl& control, FramePool& frames)
      : program_(state.program()), state_(state), control_(control), frames_(frames) {}

  /// Called at the start of a run.
  void begin() {
    committed_ = false;
    if (control_.counts_nodes && !counters_) counters_ = &state_.plans().counters().make(program_.instructions().size());
  }
  void set_cache(std::shared_ptr<ValueCache> cache) { cache_ = std::move(cache); }

  RunState& state() const { return state_; }
  const RunControl& control() const { return control_; }
  FramePool& frames() const { return frames_; }

  /// Runs one instruction of a parallel run; several threads may call it. @throws Error naming the node
  void run(InstructionId id, Evaluator& evaluator, sharing::Turn& turn);

  // The parts of run(), for callers that do other work between them. Errors of these functions do not name the node; rethrow_from() adds
  // the name.

  /// Checks for cancellation and the deadline. Checks nothing once updates of state have begun.
  void check_before(InstructionId id) {
    if (id < program_.commit_from()) [[likely]]
      return control_.stop.check();
    if (!committed_.exchange(true, std::memory_order_relaxed)) control_.stop.commit();
  }
  /// Waits until the job may use a shared device. @param breaks  while this object exists, loops within the node may let other jobs use the
  /// device
  void take_turn(InstructionId id, sharing::Turn& turn, std::optional<LoopBreakScope>& breaks) {
    turn.before_node(state_.binding().costs().hint(id));
    if (!program_.instructions()[id].dynamic) breaks.emplace(turn.within_node());
  }
  void execute(const Instruction& instruction, Evaluator& evaluator) {
    if (instruction.dynamic) [[unlikely]]
      return execute_dynamic(instruction, evaluator);
    run_static(instruction, state_.binding(), state_.pointers(instruction), state_.scratch(instruction), control_);
  }
  /// Executes the instruction and reports it to the observer, the counters and the recorder.
  void execute_watched(const Instruction& instruction, Evaluator& evaluator);
  /// Called before and after the kernel of an observed node; the kernel may end on another thread. @return the start time for end_watched()
  uint64_t begin_watched(const Instruction& instruction) const;
  void end_watched(const Instruction& instruction, uint64_t start) const;
  /// The part of end_watched() that informs the observer. Called alone after a node on a device, whose time WorkTimes records.
  /// @param device  the device that the node ran on; null: the host
  void tell_ended(const Instruction& instruction, const Device* device) const;
  /// Runs the instruction again to recompute a value. It is counted and recorded like any run of a node, but observers are not called.
  /// @throws Error naming the node
  void run_again(const Instruction& instruction, void** pointers, void* scratch, sharing::Turn& turn);
  /// Starts a kernel that may continue on another thread after this returns (run_deferred()).
  void execute_deferred(const Instruction& instruction, std::function<bool()> stop_requested,
                        std::function<void(std::vector<Datum> outputs, std::exception_ptr error)> done) const;
  /// Stores the outputs of a dynamic instruction as values of the run. @throws Error(internal) if an output is missing
  void take(const Instruction& instruction, std::vector<Datum> made);
  NodeCounters* counters() const { return control_.counts_nodes ? counters_ : nullptr; }
  bool has_cache() const { return cache_ && !cache_->empty(); }
  /// Returns the cache's entry for the only output of the instruction; null if there is no entry.
  Datum* cached(const Instruction& instruction) const;
  /// Checks a cached value. @param made  the instruction's output @throws Error(invalid_argument) if the dtype or shape of the two differ
  void expect_as_made(const Instruction& instruction, const Datum& cached, const Datum& made) const;
  /// Uses the cached output if there is one; otherwise executes the instruction and stores the output in the cache.
  void execute_cached(const Instruction& instruction, Evaluator& evaluator);
  /// Tells the session's allocator that the old contents of the buffers that this instruction writes first are no longer needed. The
  /// allocator can then detect reads of unwritten bytes.
  void renew_buffers(InstructionId id);
  /// Rethrows the current exception with the node's name and its operands' types. Call it in a catch clause.
  [[noreturn]] void rethrow_from(const Instruction& instruction) const;

 private:
  void record_time(const Instruction& instruction, uint64_t start) const;
  class Operands;
  void execute_dynamic(const Instruction& instruction, Evaluator& evaluator);
  bool is_timed() const { return control_.recording.recorder || control_.counts_nodes; }
  uint64_t count(const Instruction& instruction, uint64_t start) const;
  void record(const Instruction& instruction, uint64_t start) const;
  template <typename Tell>
  void tell_observer(Tell&& tell) const;

  const Program& program_;
  RunState& state_;
  const RunControl& control_;
  FramePool& frames_;                    // used to run bodies of control flow
  std::atomic<bool> committed_ = false;  // true once updates of state have begun
  NodeCounters* counters_ = nullptr;     // the counters of this runner; null before the first run that counts
  std::shared_ptr<ValueCache> cache_;
};

}  // namespace treadle::exec
