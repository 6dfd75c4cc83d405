// Moves values as a plan says: to a file, back from it, or by evaluating nodes again.
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

/// The file with the values of a run that are out of memory. It is made when the first value is written.
class SpillStore {
 public:
  /// @param control  has the pass, which knows the folder and counts what is moved; outlives the store.
  explicit SpillStore(const RunControl& control);
  ~SpillStore();
  SpillStore(const SpillStore&) = delete;
  SpillStore& operator=(const SpillStore&) = delete;

  /// @throws Error(io_error)
  void write(size_t file_offset, const std::byte* data, size_t size_bytes);
  void read(size_t file_offset, std::byte* data, size_t size_bytes);
  /// Counts bytes that were moved within memory. @param since_ns  when the move began (sharing::now_ns)
  void count(size_t size_bytes, uint64_t since_ns);

 private:
  const RunControl& control_;
  std::unique_ptr<memory::SpillFile> file_;
};

/// Evaluates nodes again whose values are no longer in memory.
class Reevaluation {
 public:
  Reevaluation(RunState& state, NodeRunner& nodes) : state_(state), nodes_(nodes) {}

  /// @param turn  the job's: the nodes take it as any node does. @throws Error naming the node
  void run(const BudgetedPlan& plan, const BudgetedPlan::Move& move, sharing::Turn& turn);

 private:
  RunState& state_;
  NodeRunner& nodes_;
  std::vector<void*> pointers_;  // of the operands of one node
};

/// Follows the plan of the state step by step.
class ValueMoves {
 public:
  ValueMoves(RunState& state, const RunControl& control, NodeRunner& nodes) : state_(state), spilled_(control), again_(state, nodes) {}

  /// A run begins.
  void begin() { done_before_ = kNone; }
  /// Makes the moves that the plan has before the step, unless they are done. The state has a plan.
  void make_before(size_t step, sharing::Turn& turn);
  bool are_done_before(size_t step) const { return done_before_ == step; }
  /// The values lie as they would after the moves.
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
