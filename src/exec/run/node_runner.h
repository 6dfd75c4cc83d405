// Single instructions of a run on the host, with what stands around each: cancellation, the job's turn, observers, records, cached values.
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

#include "core/thread_pool.h"
#include "exec/plan/plans.h"
#include "exec/run/run.h"
#include "exec/run/run_control.h"
#include "exec/run/run_instruction.h"
#include "exec/run/run_state.h"
#include "graph/evaluate.h"
#include "sharing/turn.h"

namespace treadle::exec {

/// What may run next is the schedule's business; whatever may, runs here, on the calling thread.
class NodeRunner {
 public:
  /// @param state, control  of the run; outlive the runner.
  /// @param frames  of the program; outlive the runner.
  NodeRunner(RunState& state, const RunControl& control, FramePool& frames)
      : program_(state.program()), state_(state), control_(control), frames_(frames) {}

  /// A run begins.
  void begin() {
    committed_ = false;
    if (control_.counts_nodes && !counters_) counters_ = &state_.plans().counters().make(program_.instructions().size());
  }
  void set_cache(std::shared_ptr<ValueCache> cache) { cache_ = std::move(cache); }

  RunState& state() const { return state_; }
  const RunControl& control() const { return control_; }
  FramePool& frames() const { return frames_; }

  /// One instruction of those that may run at once. @throws Error naming the node
  void run(InstructionId id, Evaluator& evaluator, sharing::Turn& turn);

  // The parts of it, for walks that do more in between. What they throw names no node yet: rethrow_from().

  /// Cancellation and deadline, but not between updates.
  void check_before(InstructionId id) {
    if (id < program_.commit_from()) [[likely]]
      return control_.stop.check();
    if (!committed_.exchange(true, std::memory_order_relaxed)) control_.stop.commit();
  }
  /// Gives way for other jobs. @param breaks  of loops in the node; ends with it.
  void take_turn(InstructionId id, sharing::Turn& turn, std::optional<LoopBreakScope>& breaks) {
    turn.before_node(state_.binding().costs().hint(id));
    if (!program_.instructions()[id].dynamic) breaks.emplace(turn.within_node());
  }
  void execute(const Instruction& instruction, Evaluator& evaluator) {
    if (instruction.dynamic) [[unlikely]]
      return execute_dynamic(instruction, evaluator);
    run_static(instruction, state_.binding(), state_.pointers(instruction), state_.scratch(instruction), control_);
  }
  /// With observer, counters and recorder around it.
  void execute_watched(const Instruction& instruction, Evaluator& evaluator);
  /// Before and behind the kernel of a node that is watched; it may end on another thread. @return what end_watched() is to have
  uint64_t begin_watched(const Instruction& instruction) const;
  void end_watched(const Instruction& instruction, uint64_t start) const;
  /// The two halves of end_watched() for a node that ran on a device: its kernel has ended, where only the time is recorded; the host has
  /// waited for that, and the observer is told. @param device  that it ran on; null: the host
  void record_time(const Instruction& instruction, uint64_t start) const;
  void tell_ended(const Instruction& instruction, const Device* device) const;
  /// Another time, for a value that is to be made anew: counted and recorded like any run of the node, but no news for an observer.
  /// @throws Error naming the node
  void run_again(const Instruction& instruction, void** pointers, void* scratch, sharing::Turn& turn);
  /// For a kernel that may go on elsewhere.
  void execute_deferred(const Instruction& instruction, std::function<bool()> stop_requested,
                        std::function<void(std::vector<Datum> outputs, std::exception_ptr error)> done) const;
  /// What a kernel that is bound in the run has made. @throws Error(internal) if an output is missing
  void take(const Instruction& instruction, std::vector<Datum> made);
  NodeCounters* counters() const { return control_.counts_nodes ? counters_ : nullptr; }
  bool has_cache() const { return cache_ && !cache_->empty(); }
  /// The cache's entry for the one value that the instruction makes; null if there is none.
  Datum* cached(const Instruction& instruction) const;
  /// @throws Error(invalid_argument) if the cached value has another type or shape than `made`, which the instruction makes.
  void expect_as_made(const Instruction& instruction, const Datum& cached, const Datum& made) const;
  /// A value of the cache in place of the computation, or the other way round.
  void execute_cached(const Instruction& instruction, Evaluator& evaluator);
  /// For allocators that show what is read without having been written: of what the instruction is the first to touch, nothing is wanted.
  void renew_buffers(InstructionId id);
  /// The error under way goes on with the node's name and its operands' types. Called in a catch clause.
  [[noreturn]] void rethrow_from(const Instruction& instruction) const;

 private:
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
  FramePool& frames_;                    // for bodies
  std::atomic<bool> committed_ = false;  // updates have begun
  NodeCounters* counters_ = nullptr;     // this frame's; null until a run counts
  std::shared_ptr<ValueCache> cache_;
};

}  // namespace treadle::exec
