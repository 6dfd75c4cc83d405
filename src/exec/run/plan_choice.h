// Chooses a memory plan that keeps a run within its memory limits.
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
  bool is_capped = false;                    ///< true if there is a memory limit, or if PlanningRules::arena_share limits the arena
  size_t later_bytes = 0;                    ///< bytes that nodes allocate during the run, besides arena and outputs
  std::shared_ptr<const BudgetedPlan> plan;  ///< null: the run uses the program's order and the binding's offsets
  std::optional<MemoryNeed> unmet;           ///< set if no plan fits the limits; `plan` is then the smallest one
};

class PlanChooser {
 public:
  /// All arguments must outlive the chooser. `control` belongs to the present run; its MemoryPass knows the limits.
  PlanChooser(const RunState& state, const OutputStore& outputs, const RunControl& control)
      : state_(state), outputs_(outputs), control_(control) {}

  /// Chooses a plan for a run that begins.
  PlanChoice for_run() const;
  /// Chooses a plan for the steps from `step` on, for a run whose limits have changed. Prefers a plan for the whole run, because bindings
  /// cache such plans, to a plan for the remaining steps only. If neither fits the lowered limit, returns the plan with the least memory.
  /// @param is_away  for each buffer: true if its value is in the spill file now
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
