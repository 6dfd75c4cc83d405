// How a run keeps to the limits of its session and job: it chooses a plan, waits for memory, and takes another plan when a limit changes.
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
  /// All outlive the budget. `control` is that of the present run, whose pass knows the limits.
  /// @param nodes  evaluates values again.
  RunBudget(RunState& state, const OutputStore& outputs, const RunControl& control, NodeRunner& nodes)
      : state_(state), outputs_(outputs), control_(control), chooser_(state, outputs, control), moves_(state, control, nodes) {}

  /// A run with a pass begins: chooses its plan and waits for memory.
  /// @return held until everything is allocated, so that no other run takes the memory
  /// @throws Error(resource_exhausted), while it waits Error(cancelled or timed_out)
  std::unique_lock<std::mutex> begin();
  /// A run without a pass begins.
  void begin_without_limit();

  /// There is a limit: an arena is exactly as large as needed.
  bool is_capped() const { return is_capped_; }
  /// A limit has changed since the plan was chosen.
  bool is_outdated() const { return pass().generation() != generation_; }
  /// In the plan's order.
  InstructionId instruction_at(size_t step) const;
  /// Before every step: makes the moves of the plan, of another one if a limit has changed.
  /// @param turn  the job's: nodes that are evaluated again take it as any node does
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
  uint64_t generation_ = 0;  // of the limits that the plan was chosen for
  size_t later_bytes_ = 0;   // as PlanChoice's, of the plan that the run follows
  bool is_capped_ = false;
};

}  // namespace treadle::exec
