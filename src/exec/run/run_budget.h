// What a run does to keep to a session's memory limit: it follows a plan that moves values out of the arena and back, or computes them
// again, and takes another plan when the limit changes.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "exec/run/output_store.h"
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
struct RunMemory;

class RunBudget {
 public:
  /// All outlive it; `control` is the one of the present run, whose `pass` knows the limit.
  /// @param nodes  runs what is to be made anew.
  RunBudget(RunState& state, const OutputStore& outputs, const RunControl& control, NodeRunner& nodes);
  ~RunBudget();

  /// Of a run that begins and has a limit: chooses its plan and waits for room.
  /// @return held until everything is allocated: nobody else takes the room.
  /// @throws Error(resource_exhausted), of waiting Error(cancelled or timed_out)
  std::unique_lock<std::mutex> begin();
  /// Of a run that begins without a limit.
  void begin_without_limit();

  /// There is a limit; an arena is exactly as large as needed.
  bool is_capped() const { return capped_; }
  /// The limit is another one than the plan was chosen for.
  bool is_outdated() const;
  /// In the plan's order.
  InstructionId instruction_at(size_t step) const;
  /// Before every step: what the plan moves there.
  /// @param turn  the job's: values that are made anew take it as any node does
  void move_values(size_t step, sharing::Turn& turn);

 private:
  void choose();
  std::unique_lock<std::mutex> make_room();
  size_t capacity_beside(size_t bytes) const;
  RunMemory memory_beside(bool at_once) const;
  /// A value that is needed when the limit changes.
  struct Kept {
    BufferId buffer;
    size_t from, to = 0;    ///< in the arena, or kAway: in the file
    bool is_wanted = true;  ///< in the file, by the new plan
  };
  void choose_rest(int32_t step, std::span<const Kept> kept);
  size_t size_of(const Kept& value) const;
  void follow_limit(int32_t step);
  bool find_kept(int32_t step, std::vector<Kept>& kept) const;
  void aim(int32_t step, std::vector<Kept>& kept) const;
  bool is_better_left(const std::vector<Kept>& kept, const BudgetedPlan* before, int32_t step) const;
  bool make_arena_hold(int32_t step, std::vector<Kept>& kept, const BudgetedPlan& any_plan);
  bool copy_to_second_arena(std::vector<Kept>& kept, const BudgetedPlan& any_plan);
  void arrange(const std::vector<Kept>& kept, const BudgetedPlan& any_plan);
  bool is_needed(const BudgetedPlan* plan, BufferId buffer, int32_t step) const;
  static bool is_loaded_later(const BudgetedPlan& plan, BufferId buffer, int32_t step);
  static bool is_away_without_copy(const BudgetedPlan& plan, BufferId buffer, int32_t step);
  void recompute(const BudgetedPlan& plan, size_t first, size_t count, sharing::Turn& turn);
  void write_out(size_t file_offset, size_t offset, size_t size_bytes);
  void write_out(size_t file_offset, const std::byte* data, size_t size_bytes);
  void read_back(size_t file_offset, size_t offset, size_t size_bytes);

  static constexpr size_t kNeverMoved = SIZE_MAX;

  RunState& state_;
  const OutputStore& outputs_;
  const RunControl& control_;
  NodeRunner& nodes_;
  uint64_t limit_generation_ = 0;  // of the limit that the plan was chosen for
  size_t later_bytes_ = 0;         // beside arena and outputs, when nodes ask for them
  bool capped_ = false;
  size_t moved_before_ = kNeverMoved;  // the step whose moves have been done
  std::vector<void*> replay_pointers_;
  std::unique_ptr<memory::SpillFile> spill_file_;
};

}  // namespace treadle::exec
