// The values that a run keeps while it goes from one plan to another, between two steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "exec/plan/budget.h"
#include "exec/run/run_state.h"
#include "exec/run/value_moves.h"

namespace treadle::exec {

/// What is needed at a step or later: where it lies, and where it is to lie by the plan that the state has by then.
class KeptValues {
 public:
  /// @param step     the next one of the run
  /// @param is_moved the moves of the present plan before the step have been made
  /// @return nothing if a value is nowhere at the moment, because it is to be evaluated again
  static std::optional<KeptValues> find(RunState& state, SpillStore& spilled, int32_t step, bool is_moved);

  int32_t step() const { return step_; }
  /// By buffer: the value is in the file.
  IdVector<BufferId, bool> away() const;
  /// Looks up the places at the step in the plan that the state has now.
  void aim();
  /// How much has to change its place.
  size_t bytes_to_move() const;

  /// Writes all that is in the arena to the file.
  void write_all();
  /// Copies from an arena before to the one that the state has now, as aimed at.
  void copy_from(const std::byte* arena_before);
  /// Moves everything from the old places to the new ones, in an arena that has both.
  void arrange();
  /// The state's plan is the one before again: values lie where they lay.
  void stay();

 private:
  struct Kept {
    BufferId buffer;
    size_t size_bytes;
    size_t from, to = 0;    // in the arena, or kAway: in the file
    bool is_wanted = true;  // in the file, by the new plan
  };

  KeptValues(RunState& state, SpillStore& spilled, int32_t step)
      : state_(&state), spilled_(&spilled), step_(step), files_(state.budget()) {}
  size_t in_file(const Kept& value) const { return files_->file_offsets[value.buffer]; }

  RunState* state_;
  SpillStore* spilled_;
  int32_t step_;
  std::shared_ptr<const BudgetedPlan> files_;  // has the places in the file, which are the same in all plans of a binding
  std::vector<Kept> values_;
};

}  // namespace treadle::exec
