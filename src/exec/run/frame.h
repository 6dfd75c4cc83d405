// A frame: a run on the host, with its values, its memory and its position in the schedule.
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

/// A run on the host. A step is one instruction, in the program's order. When the run stops, exactly the instructions before that point
/// have run. Between stops, instructions run in sequence, or in parallel as they become ready if that is faster (parallel.h).
class Frame final : public Run {
 public:
  /// @param frames  the pools of frames for the program and its bodies; must outlive the run
  explicit Frame(FramePool& frames);
  ~Frame() override;

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
  /// Must be called after an error. If an output has moved rows of a feed within the feed's memory (Slide), moves these rows back.
  void restore_feeds() { outputs_.restore_feeds(next_in_order()); }
  void clear() noexcept override;
  void trim() noexcept override { state_.drop_arena(); }

  const Program& program() const { return state_.program(); }
  const Binding& binding() const { return state_.binding(); }
  RunState& state() { return state_; }
  const RunState& state() const { return state_; }
  const RunControl& control() const override { return control_; }
  /// Returns the present value of the slot; undefined if it has not been computed. The run may overwrite its memory later.
  Datum value(SlotId slot) const { return state_.value(slot, /*shared=*/false); }
  /// Returns true while instructions run as they become ready. Ends with the run, or when the memory limit changes.
  bool goes_by_readiness() const { return by_readiness_; }

 private:
  void find_memory();
  void choose_schedule();
  [[noreturn]] void rethrow_with_memory() const;
  void advance_by_readiness(size_t end);
  void advance_in_order(size_t end);
  void find_starved();
  /// The next instruction. @pre the run follows the program's order, which programs with a Yield always do
  InstructionId next_in_order() const { return id_at<InstructionId>(cursor_.next()); }
  bool is_touched_later(SlotId root, bool written) const;

  const Program& program_;
  RunControl control_;
  RunState state_;
  FeedBinder feeds_;
  OutputStore outputs_;
  NodeRunner nodes_;
  RunBudget budget_;
  Evaluator evaluator_;  // for instructions that are bound during the run
  StepCursor cursor_;    // a step is an instruction, in the program's order or in that of a budgeted plan
  bool by_readiness_ = false;
  std::unique_ptr<ParallelState> parallel_;
};

/// Pools of idle frames for a program and its bodies. Thread-safe.
class FramePool {
 public:
  /// @param plans  plans of the program; must outlive the pool
  explicit FramePool(Plans& plans);
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  Plans& plans() const { return plans_; }
  FramePool& of_body(const Program& body) { return *bodies_.at(&body); }

  std::unique_ptr<Frame> take();
  void give_back(std::unique_ptr<Frame> frame) noexcept { idle_.give_back(std::move(frame)); }
  /// Executes a whole run like Executor::run(). @throws Error; also if the program stops at a Yield
  /// @param parent_values  for a body: values of the symbols in the surrounding run
  void run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound = {},
           std::span<const OutputMemory> memory = {}, std::span<const int64_t> parent_values = {});
  /// Frees the memory of the program's idle frames. trim_all() also frees that of idle frames of bodies.
  void trim() noexcept { idle_.trim(); }
  void trim_all() noexcept;

 private:
  Plans& plans_;
  std::unordered_map<const Program*, std::unique_ptr<FramePool>> bodies_;
  RunPool<Frame> idle_;
};

}  // namespace treadle::exec
