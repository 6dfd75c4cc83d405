// A run in flight on the host: values, feeds, outputs, limits, and where it is in its schedule.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "exec/plan/plans.h"
#include "exec/run/executor.h"
#include "exec/run/feed_binder.h"
#include "exec/run/node_runner.h"
#include "exec/run/output_store.h"
#include "exec/run/run_budget.h"
#include "exec/run/run_control.h"
#include "exec/run/run_state.h"
#include "exec/run/step_cursor.h"
#include "graph/evaluate.h"
#include "treadle/datum.h"

namespace treadle::exec {

class FramePool;
struct ParallelState;

/// A run on the host. Its steps are instructions in the program's order: where it stops, all before have run and none behind. On the way
/// there they run one after the other, or by readiness where that pays (parallel.h).
class Frame final : public Run {
 public:
  /// @param frames  of the program and its bodies; outlive the run.
  explicit Frame(FramePool& frames);
  ~Frame() override;

  void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
             std::span<const OutputMemory> memory) override {
    start(feeds, bound, control, memory, {});
  }
  /// @param parent_values  of a body: the symbols' values of the run around it.
  void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control, std::span<const OutputMemory> memory,
             std::span<const int64_t> parent_values);
  void set_cache(std::shared_ptr<ValueCache> cache) override { nodes_.set_cache(std::move(cache)); }

  void set_recorder(const RunControl& of) override { control_.recording = of.recording; }
  void feed(size_t input, const Datum& value) override;
  void move_feed(size_t input, const Datum& value) override;
  bool has_output(size_t k) const override;
  Datum output(size_t k) const override { return outputs_.output(k); }
  Datum take_output(size_t k) override;

  bool advance(size_t steps = SIZE_MAX) override;
  size_t steps_left() const override;
  size_t steps_through(InstructionId instruction) const override;
  bool finished() const override { return cursor_.finished(); }

  const Instruction* yield() const override {
    if (finished()) return nullptr;
    const Instruction& next = program_.instructions()[next_in_order()];
    return next.is_yield ? &next : nullptr;
  }
  std::vector<Datum> yielded() override;
  void resume(std::span<const Datum> values) override;

  void take_outputs(std::span<Datum> outputs) override;
  /// After an error: feeds whose rows have been moved within their memory are as they were.
  void restore_feeds() { outputs_.restore_feeds(next_in_order()); }
  void clear() noexcept override;
  void trim() noexcept override { state_.drop_arena(); }

  const Program& program() const { return state_.program(); }
  const Binding& binding() const { return state_.binding(); }
  RunState& state() { return state_; }
  const RunState& state() const { return state_; }
  const RunControl& control() const override { return control_; }
  /// The value as it is now; it lies in memory that the run uses again. Undefined if nothing has been computed.
  Datum value(SlotId slot) const { return state_.value(slot, /*shared=*/false); }
  /// Whether instructions run by readiness until the run's end, a Yield, or another memory limit.
  bool goes_by_readiness() const { return by_readiness_; }

 private:
  void find_memory();
  void choose_schedule();
  [[noreturn]] void rethrow_with_memory() const;
  void advance_by_readiness(size_t end);
  void advance_in_order(size_t end);
  void find_starved();
  /// The instruction at the cursor where the run keeps the program's order, as programs with a Yield do.
  InstructionId next_in_order() const { return id_at<InstructionId>(cursor_.next()); }
  bool is_touched_later(SlotId root, bool written) const;

  const Program& program_;
  RunControl control_;
  RunState state_;
  FeedBinder feeds_;
  OutputStore outputs_;
  NodeRunner nodes_;
  RunBudget budget_;
  Evaluator evaluator_;  // for instructions bound in the run
  StepCursor cursor_;    // a step is an instruction, in the order of the budget's plan if there is one
  bool by_readiness_ = false;
  std::unique_ptr<ParallelState> parallel_;
};

/// The runs of a program on the host that nobody uses right now, and those of its bodies. Thread-safe.
class FramePool {
 public:
  /// @param plans  of the program; outlive the pool.
  explicit FramePool(Plans& plans);
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  Plans& plans() const { return plans_; }
  FramePool& of_body(const Program& body) { return *bodies_.at(&body); }

  std::unique_ptr<Frame> take();
  void give_back(std::unique_ptr<Frame> frame) noexcept { idle_.give_back(std::move(frame)); }
  /// A whole run, as Executor::run. @throws Error; a Yield in the program is one.
  /// @param parent_values  of a body: the symbols' values of the run around it.
  void run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound = {},
           std::span<const OutputMemory> memory = {}, std::span<const int64_t> parent_values = {});
  /// Lets go of the memory that idle runs hold, without or with that of bodies.
  void trim() noexcept { idle_.trim(); }
  void trim_all() noexcept;

 private:
  Plans& plans_;
  std::unordered_map<const Program*, std::unique_ptr<FramePool>> bodies_;
  RunPool<Frame> idle_;
};

}  // namespace treadle::exec
