// Plans for runs in less memory than the extents need: between the nodes that read them, values are written to a file or recomputed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/plan/proof.h"
#include "exec/program/program.h"

namespace treadle::exec {

class Binding;

/// The sizes that a plan was made for. The plan is valid for other extents too, if no buffer is larger for them.
struct BudgetBasis;

/// The arena offset of each value at each node, and the moves between nodes. A plan is made for one binding and one memory budget.
struct BudgetedPlan {
  static constexpr size_t kNowhere = SIZE_MAX;

  enum class Kind : uint8_t { spill, load, recompute };
  struct Move {
    Kind kind;
    BufferId buffer;
    size_t offset;  ///< offset in the arena from which a buffer is spilled or to which it is loaded
    uint32_t first_replay = 0, num_replays = 0;
  };
  /// An instruction that runs again to recompute a value.
  struct Replay {
    InstructionId instruction;
    size_t scratch_offset;
    uint32_t first_offset;  ///< index into replay_offsets: one entry per operand
  };
  struct Stay {
    int32_t first, last;  ///< the first and the last step, both included
    size_t offset;
  };

  /// Memory in use at one step besides the buffers: scratch memory and other outputs of recomputed instructions.
  struct Extra {
    int32_t step;
    size_t offset, size_bytes;
  };

  /// Instructions in the order of execution; empty: the program's order. A step is an index in this order.
  std::vector<InstructionId> order;
  size_t arena_bytes = 0;
  size_t spilled_bytes = 0, num_recomputed = 0;
  double cost_ns = 0;                   ///< estimated time for all spills, reloads and recomputed nodes
  std::vector<size_t> operand_offsets;  ///< offset of each operand in the arena; kNowhere: the operand is not in the arena
  IdVector<InstructionId, size_t> scratch_offsets;
  std::vector<Move> moves;
  std::vector<uint32_t> first_move;  ///< index of the first move before each step, with one more entry at the end
  std::vector<Replay> replays;
  /// Offset of each operand in the arena; kNowhere: the operand has the same address as without a budget.
  std::vector<size_t> replay_offsets;
  IdVector<BufferId, std::vector<Stay>> stays;  ///< for each buffer: the step intervals during which it is in memory, with its offset
  std::vector<Extra> extras;
  /// For each buffer, the steps after which its contents are dropped without being written to the file.
  IdVector<BufferId, std::vector<int32_t>> drops;
  IdVector<BufferId, size_t> file_offsets;  ///< the same in all plans of a binding
  /// For each buffer: true if it was written before the plan's first step; empty: the plan begins with the run.
  IdVector<BufferId, bool> carried;
  std::shared_ptr<const BudgetBasis> basis;
  Proof proof;  ///< with verify_plans, a run verifies this plan before following it, and records that here

  InstructionId instruction_at(size_t step) const { return order.empty() ? id_at<InstructionId>(step) : order[step]; }
  /// True if the buffer is used before the step and again at the step or later.
  bool is_alive_around(BufferId buffer, int32_t step) const {
    const auto& list = stays[buffer];
    if (list.empty() || step > list.back().last) return false;
    return list.front().first < step || (!carried.empty() && carried[buffer]);
  }
};

/// The instruction orders that a plan may use.
struct OrderChoice {
  bool free = false;                 ///< true: any order in which every instruction reads the same values as in the program's order
  std::vector<InstructionId> fixed;  ///< the only allowed order if `free` is false; empty: the program's order
  /// True if the caller binds an output to a feed's memory only where the output is the next version of the feed.
  bool binds_next_versions = false;
  bool operator==(const OrderChoice&) const = default;
};

/// Returns the plan with the lowest estimated cost of moves among plans whose arena has at most `capacity_bytes`. If there is no such plan,
/// returns the one with the smallest arena.
std::shared_ptr<const BudgetedPlan> plan_for_budget(const Binding& binding, size_t capacity_bytes, const OrderChoice& order);

/// Like plan_for_budget(), for the rest of a run that has reached `step`; earlier steps need no memory. Values in the arena stay in memory
/// if the capacity permits; otherwise those with the farthest next use are spilled.
/// @param is_away  for each buffer: true if its value is in the spill file now
std::shared_ptr<const BudgetedPlan> plan_rest(const Binding& binding, size_t capacity_bytes, const OrderChoice& order, int32_t step,
                                              const IdVector<BufferId, bool>& is_away);

/// Returns the plan with the smallest arena, below `own_arena_bytes`, whose recomputed nodes are estimated to take at most this share of
/// the time of all nodes. The plan keeps the program's order, spills nothing, and assumes OrderChoice::binds_next_versions. Null: there is
/// no such plan.
/// @param pays  true: prefers the plan with the best trade-off, where each percent of extra time must free four percent of the arena
std::shared_ptr<const BudgetedPlan> plan_for_time(const Binding& binding, double share, bool pays, size_t own_arena_bytes);

/// Returns a plan with the moves and offsets of a plan for other extents. Null: that plan is too small for this binding.
std::shared_ptr<const BudgetedPlan> plan_as_for(const BudgetedPlan& larger, const Binding& binding);

}  // namespace treadle::exec
