// Chooses the plan by which a run keeps to its memory limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "exec/memory/memory_pass.h"
#include "exec/plan/budget.h"
#include "exec/run/output_store.h"
#include "exec/run/run_control.h"
#include "exec/run/run_memory.h"
#include "exec/run/run_state.h"

namespace treadle::exec {

struct PlanChoice {
  bool is_capped = false;                    ///< there is a limit, or the arena has only a share of what the extents need
  size_t later_bytes = 0;                    ///< what nodes may allocate during the run, beside arena and outputs
  std::shared_ptr<const BudgetedPlan> plan;  ///< null: the binding's offsets, in the program's order
  std::optional<MemoryNeed> unmet;           ///< the limits hold no plan; `plan` is the smallest then
};

class PlanChooser {
 public:
  /// All outlive the chooser. `control` is that of the present run, whose pass knows the limits.
  PlanChooser(const RunState& state, const OutputStore& outputs, const RunControl& control)
      : state_(state), outputs_(outputs), control_(control) {}

  /// For a run that begins.
  PlanChoice for_run() const;
  /// For a run whose limits have changed, from a step of its present plan on: a plan for all of the run where that fits, because a binding
  /// keeps such plans, or else one for the rest. Where the rest does not fit either, the plan takes as little as it can: the limit became
  /// lower after the run had begun.
  /// @param is_away  by buffer: the value is in the spill file at the moment
  PlanChoice for_rest(int32_t step, const IdVector<BufferId, bool>& is_away) const;

 private:
  MemoryPass& pass() const { return *control_.memory.pass; }
  size_t capacity_beside(size_t bytes) const;
  RunMemory memory_beside(bool at_once) const;
  RunMemory begin(PlanChoice& choice, size_t output_bytes) const;
  bool find_plan(PlanChoice& choice, const OrderChoice& order, size_t output_bytes, RunMemory& beside) const;

  const RunState& state_;
  const OutputStore& outputs_;
  const RunControl& control_;
};

}  // namespace treadle::exec
