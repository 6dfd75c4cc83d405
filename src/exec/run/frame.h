// A run in flight on the host: the program counter, and what runs at it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exec/memory/run_budget.h"
#include "exec/program/program.h"
#include "exec/run/executor.h"
#include "exec/run/feed_binder.h"
#include "exec/run/output_store.h"
#include "exec/run/run_control.h"
#include "exec/run/run_state.h"
#include "graph/evaluate.h"
#include "treadle/datum.h"

namespace treadle::sharing {
class Turn;
}  // namespace treadle::sharing

namespace treadle::exec {

struct ParallelState;

/// A run on the host. Its steps are instructions, one after the other; exec::run() has them at once where that pays (parallel.h).
class Frame final : public Run {
 public:
  explicit Frame(const Program& program);
  ~Frame() override;

  void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
             std::span<const OutputMemory> memory) override {
    start(feeds, bound, control, memory, {});
  }
  /// @param parent_values  of a body: the symbols' values of the run around it.
  void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control, std::span<const OutputMemory> memory,
             std::span<const int64_t> parent_values);
  void set_cache(std::shared_ptr<ValueCache> cache) override { cache_ = std::move(cache); }

  void feed(size_t input, const Datum& value) override;
  bool has_output(size_t k) const override;
  Datum output(size_t k) const override { return state_.value(program_.output_slots()[k], /*shared=*/true); }

  bool advance(size_t steps = SIZE_MAX) override;
  size_t steps_left() const override;
  size_t steps_through(size_t instruction) const override { return instruction < pc_ ? 0 : instruction + 1 - pc_; }
  bool finished() const override { return pc_ == program_.instructions().size(); }

  const Instruction* yield() const override {
    return !finished() && program_.instructions()[pc_].is_yield ? &program_.instructions()[pc_] : nullptr;
  }
  std::vector<Datum> yielded() override;
  void resume(std::span<const Datum> values) override;

  void take_outputs(std::span<Datum> outputs) override;
  /// After an error: feeds whose rows have been moved within their memory are as they were.
  void restore_feeds() { outputs_.restore_feeds(pc_); }
  void clear() noexcept override;
  void trim() noexcept override { state_.drop_arena(); }

  const Program& program() const { return state_.program(); }
  const Binding& binding() const { return state_.binding(); }
  RunState& state() { return state_; }
  const RunState& state() const { return state_; }
  const RunControl& control() const override { return control_; }
  /// For observers: the value as it is now; it lies in memory that the run uses again. Undefined if nothing has been computed.
  Datum value(int32_t slot) const { return state_.value(slot, /*shared=*/false); }

  // For executors that choose the next instruction themselves.

  /// Runs one instruction, on the calling thread. @throws Error naming the node
  void run_one(const Instruction& instruction, size_t index, Evaluator& evaluator, sharing::Turn& turn);
  /// Everything before `step` has been run: advance() goes on from there.
  void go_on_from(size_t step) { pc_ = step; }
  /// There is another memory limit than the run was begun for.
  bool is_limit_outdated() const { return budget_.is_outdated(); }
  /// The error under way goes on with the node's name and its operands' types. Called in a catch clause.
  [[noreturn]] void rethrow_from(const Instruction& instruction) const;
  /// Memory of parallel runs, kept from run to run.
  ParallelState& parallel_state();

 private:
  class Operands;
  void execute(const Instruction& instruction, Evaluator& evaluator);
  void execute_dynamic(const Instruction& instruction, Evaluator& evaluator);
  void execute_watched(const Instruction& instruction, Evaluator& evaluator);
  void execute_cached(const Instruction& instruction);
  void record(const Instruction& instruction, uint64_t start, uint64_t end) const;
  void check_before(size_t index);
  void find_starved();
  [[noreturn]] void refuse_starving() const;
  void renew_buffers(size_t instruction);

  const Program& program_;
  RunControl control_;
  RunState state_;
  FeedBinder feeds_;
  OutputStore outputs_;
  RunBudget budget_;
  Evaluator evaluator_;                  // for instructions bound in the run
  size_t pc_ = 0;                        // steps done: instructions, in the order of the budget's plan if there is one
  size_t starved_ = SIZE_MAX;            // the first step that reads an input which is still to be fed
  std::atomic<bool> committed_ = false;  // updates have begun
  std::shared_ptr<ValueCache> cache_;
  std::unique_ptr<ParallelState> parallel_state_;
};

class FramePool final : public RunPool<Frame> {};

/// Runs a whole program on the host. @throws Error; a Yield in it is one.
void run(const Program& program, std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control,
         std::span<const Datum> bound = {}, std::span<const OutputMemory> memory = {}, std::span<const int64_t> parent_values = {});

}  // namespace treadle::exec
