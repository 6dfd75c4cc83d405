// The values that a run must keep when it changes to another memory plan between two steps.
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

/// The values needed at a step or later. For each, its present location and its location in the new plan.
class KeptValues {
 public:
  /// @param step      the run's next step
  /// @param is_moved  true if the moves that the present plan makes before this step are done
  /// @return nothing if a value is neither in the arena nor in the file, because the plan recomputes it later
  static std::optional<KeptValues> find(RunState& state, SpillStore& spilled, int32_t step, bool is_moved);

  int32_t step() const { return step_; }
  /// Returns, for each buffer, true if the value is in the file.
  IdVector<BufferId, bool> away() const;
  /// Sets the target locations of the values from the plan that the state has now.
  void aim();
  /// Returns the total bytes of the values whose location changes.
  size_t bytes_to_move() const;

  /// Writes all values that are in the arena to the file.
  void write_all();
  /// Copies the values from a previous arena to their target locations in the present arena.
  void copy_from(const std::byte* arena_before);
  /// Moves the values to their target locations within the arena, which must be large enough for old and new locations.
  void arrange();
  /// Makes the present location of every value its target, because the state has returned to its previous plan.
  void stay();

 private:
  struct Kept {
    BufferId buffer;
    size_t size_bytes;
    size_t from, to = 0;    // offsets in the arena; kAway: the value is in the file
    bool is_wanted = true;  // true if the new plan reads the value from the file
  };

  KeptValues(RunState& state, SpillStore& spilled, int32_t step)
      : state_(&state), spilled_(&spilled), step_(step), files_(state.budget()) {}
  size_t in_file(const Kept& value) const { return files_->file_offsets[value.buffer]; }

  RunState* state_;
  SpillStore* spilled_;
  int32_t step_;
  std::shared_ptr<const BudgetedPlan> files_;  // gives the offsets in the file, which are the same in all plans of a binding
  std::vector<Kept> values_;
};

}  // namespace treadle::exec
