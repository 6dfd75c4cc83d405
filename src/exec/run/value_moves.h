// Moves values as a memory plan demands: to a file, back from it, or by recomputation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/plan/budget.h"
#include "exec/run/run_control.h"
#include "exec/run/run_state.h"

namespace treadle {
namespace memory {
class SpillFile;
}
namespace sharing {
class Turn;
}
}  // namespace treadle

namespace treadle::exec {

class NodeRunner;

/// The file for values of a run that do not fit into memory. The file is created when the first value is written.
class SpillStore {
 public:
  /// @param control  must outlive the store. Its MemoryPass gives the folder and counts the moved bytes.
  explicit SpillStore(const RunControl& control);
  ~SpillStore();
  SpillStore(const SpillStore&) = delete;
  SpillStore& operator=(const SpillStore&) = delete;

  /// @throws Error(io_error)
  void write(size_t file_offset, const std::byte* data, size_t size_bytes);
  void read(size_t file_offset, std::byte* data, size_t size_bytes);
  /// Counts bytes that were moved within memory. @param since_ns  start of the move (sharing::now_ns)
  void count(size_t size_bytes, uint64_t since_ns);

 private:
  const RunControl& control_;
  std::unique_ptr<memory::SpillFile> file_;
};

/// Recomputes values that are no longer in memory.
class Reevaluation {
 public:
  Reevaluation(RunState& state, NodeRunner& nodes) : state_(state), nodes_(nodes) {}

  /// Recomputes a value. @param turn  the job's turn on a shared device, for which the nodes wait as usual. @throws Error naming the node
  void run(const BudgetedPlan& plan, const BudgetedPlan::Move& move, sharing::Turn& turn);

 private:
  RunState& state_;
  NodeRunner& nodes_;
  std::vector<void*> pointers_;  // addresses of one node's operands
};

/// Executes the moves of the present plan, step by step.
class ValueMoves {
 public:
  ValueMoves(RunState& state, const RunControl& control, NodeRunner& nodes) : state_(state), spilled_(control), again_(state, nodes) {}

  /// Called when a run begins.
  void begin() { done_before_ = kNone; }
  /// Makes the moves that the plan schedules before this step, unless they are done already. @pre the state has a plan
  void make_before(size_t step, sharing::Turn& turn);
  bool are_done_before(size_t step) const { return done_before_ == step; }
  /// Records that all values are already in the places to which the moves before this step would bring them.
  void note_done_before(size_t step) { done_before_ = step; }

  SpillStore& spilled() { return spilled_; }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  RunState& state_;
  SpillStore spilled_;
  Reevaluation again_;
  size_t done_before_ = kNone;
};

}  // namespace treadle::exec
