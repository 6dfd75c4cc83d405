// Keeps a run within the limits of its session and job: chooses a plan, waits for memory, and changes the plan when a limit changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "exec/run/kept_values.h"
#include "exec/run/output_store.h"
#include "exec/run/plan_choice.h"
#include "exec/run/run_control.h"
#include "exec/run/run_state.h"
#include "exec/run/value_moves.h"

namespace treadle::exec {

class RunBudget {
 public:
  /// All arguments must outlive the budget. `control` is the present run's; its pass knows the limits.
  /// @param nodes  recomputes values.
  RunBudget(RunState& state, const OutputStore& outputs, const RunControl& control, NodeRunner& nodes)
      : state_(state), outputs_(outputs), control_(control), chooser_(state, outputs, control), moves_(state, control, nodes) {}

  /// Called when a run with a pass begins: chooses its plan and waits for memory.
  /// @return a lock to hold until everything is allocated, so that no other run takes the memory
  /// @throws Error(resource_exhausted); Error(cancelled or timed_out) while waiting
  std::unique_lock<std::mutex> begin();
  /// Called when a run without a pass begins.
  void begin_without_limit();

  /// True if there is a limit; the arena is then never larger than needed.
  bool is_capped() const { return is_capped_; }
  /// True if a limit has changed since the plan was chosen.
  bool is_outdated() const { return pass().generation() != generation_; }
  /// Returns the instruction at a step in the plan's order.
  InstructionId instruction_at(size_t step) const;
  /// Called before every step: follows a changed limit, then makes the plan's moves.
  /// @param turn  the job's; nodes that are recomputed wait for it like any node
  void move_values(size_t step, sharing::Turn& turn);

 private:
  MemoryPass& pass() const { return *control_.memory.pass; }
  void choose();
  void choose_rest(const KeptValues& kept);
  void note(const PlanChoice& choice);
  std::unique_lock<std::mutex> wait_for_memory();
  void follow_limit(int32_t step);
  bool is_better_left(const KeptValues& kept, const BudgetedPlan* before) const;
  bool make_arena_hold(KeptValues& kept);
  bool copy_to_second_arena(KeptValues& kept);
  void replace_arena(KeptValues& kept);

  RunState& state_;
  const OutputStore& outputs_;
  const RunControl& control_;
  const PlanChooser chooser_;
  ValueMoves moves_;
  uint64_t generation_ = 0;  // identifies the limits that the plan was chosen for
  size_t later_bytes_ = 0;   // PlanChoice::later_bytes of the present plan
  bool is_capped_ = false;
};

}  // namespace treadle::exec
