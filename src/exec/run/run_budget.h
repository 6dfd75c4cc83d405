// Keeps a run within the memory limits of its session and job: chooses a plan, waits for memory, and changes the plan if a limit changes.
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
  /// All arguments must outlive the budget. `control` belongs to the present run; its MemoryPass knows the limits.
  /// @param nodes  used to recompute values
  RunBudget(RunState& state, const OutputStore& outputs, const RunControl& control, NodeRunner& nodes)
      : state_(state), outputs_(outputs), control_(control), chooser_(state, outputs, control), moves_(state, control, nodes) {}

  /// Called when a run with a memory limit begins: chooses the plan and waits for memory.
  /// @return a lock, which the caller holds until everything is allocated, so that no other run takes the memory
  /// @throws Error(resource_exhausted); Error(cancelled or timed_out) while waiting
  std::unique_lock<std::mutex> begin();
  /// Called when a run without a memory limit begins.
  void begin_without_limit();

  /// Returns true if there is a memory limit. Then the arena is never larger than needed.
  bool is_capped() const { return is_capped_; }
  /// Returns true if a limit has changed since the plan was chosen.
  bool is_outdated() const { return pass().generation() != generation_; }
  /// Returns the instruction at this step, in the order of the plan.
  InstructionId instruction_at(size_t step) const;
  /// Called before every step: adapts to a changed limit, then executes the moves of the plan.
  /// @param turn  the job's turn on a shared device, for which recomputed nodes wait like any node
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
  uint64_t generation_ = 0;  // identifies the limits for which the plan was chosen
  size_t later_bytes_ = 0;   // PlanChoice::later_bytes of the present plan
  bool is_capped_ = false;
};

}  // namespace treadle::exec
