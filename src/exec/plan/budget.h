// Plans for runs in less memory than the extents need: values are written to a file, or evaluated again, between the nodes that read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/plan/proof.h"
#include "exec/program/program.h"

namespace treadle::exec {

class Binding;

/// The sizes that a plan was made for. The plan holds for other extents as well if none of their buffers is larger.
struct BudgetBasis;

/// The offset of each value in the arena, per node, and the moves between nodes. A plan is for one binding and one memory budget.
struct BudgetedPlan {
  static constexpr size_t kNowhere = SIZE_MAX;

  enum class Kind : uint8_t { spill, load, recompute };
  struct Move {
    Kind kind;
    BufferId buffer;
    size_t offset;  ///< offset in the arena: a spilled buffer was there, or a loaded one comes there
    uint32_t first_replay = 0, num_replays = 0;
  };
  /// One instruction that is evaluated again for a value.
  struct Replay {
    InstructionId instruction;
    size_t scratch_offset;
    uint32_t first_offset;  ///< index into replay_offsets: one entry per operand
  };
  struct Stay {
    int32_t first, last;  ///< the first and the last step, both included
    size_t offset;
  };

  /// Memory at one step beside the buffers: values of instructions that are evaluated again.
  struct Extra {
    int32_t step;
    size_t offset, size_bytes;
  };

  /// Instructions in the order in which they run; empty: the program's order. A step is a position in it.
  std::vector<InstructionId> order;
  size_t arena_bytes = 0;
  size_t spilled_bytes = 0, num_recomputed = 0;
  double cost_ns = 0;                   ///< estimated time of all spills, reloads and recomputed nodes
  std::vector<size_t> operand_offsets;  ///< offset of each operand in the arena; kNowhere: the operand is not in the arena
  IdVector<InstructionId, size_t> scratch_offsets;
  std::vector<Move> moves;
  std::vector<uint32_t> first_move;  ///< index of the first move before each step, with one more entry at the end
  std::vector<Replay> replays;
  /// Offset of each operand in the arena; kNowhere: the operand is where the plan without a budget has it.
  std::vector<size_t> replay_offsets;
  IdVector<BufferId, std::vector<Stay>> stays;  ///< by buffer: the intervals in which it is in memory, with its offset
  std::vector<Extra> extras;
  /// For each buffer, the steps after which it leaves memory without being written to the file.
  IdVector<BufferId, std::vector<int32_t>> drops;
  IdVector<BufferId, size_t> file_offsets;  ///< these are the same in all plans of a binding
  /// By buffer: true if it was written before the plan begins in mid-run; empty: the plan begins with the run.
  IdVector<BufferId, bool> carried;
  std::shared_ptr<const BudgetBasis> basis;
  Proof proof;  ///< if plans are verified, a run proves this plan before it follows it

  InstructionId instruction_at(size_t step) const { return order.empty() ? id_at<InstructionId>(step) : order[step]; }
  /// True if the buffer is used before the step, and at the step or later.
  bool is_alive_around(BufferId buffer, int32_t step) const {
    const auto& list = stays[buffer];
    if (list.empty() || step > list.back().last) return false;
    return list.front().first < step || (!carried.empty() && carried[buffer]);
  }
};

/// The instruction orders that a plan may use.
struct OrderChoice {
  bool free = false;                 ///< every order in which instructions read the same values as in the program's order
  std::vector<InstructionId> fixed;  ///< the only order, if `free` is false; empty: the program's
  /// The caller binds an output to a feed's memory only if the output is the next version of the feed.
  bool binds_next_versions = false;
  bool operator==(const OrderChoice&) const = default;
};

/// Returns the plan for an arena of at most `capacity_bytes` whose moves are estimated to cost the least. If none was found, returns the
/// one with the smallest arena.
std::shared_ptr<const BudgetedPlan> plan_for_budget(const Binding& binding, size_t capacity_bytes, const OrderChoice& order);

/// Like plan_for_budget(), for the rest of a run that has reached `step`: earlier steps need no memory. Values in the arena stay in memory
/// if the capacity permits; otherwise those with the farthest next use are spilled first.
/// @param is_away  by buffer: the value is in the spill file now
std::shared_ptr<const BudgetedPlan> plan_rest(const Binding& binding, size_t capacity_bytes, const OrderChoice& order, int32_t step,
                                              const IdVector<BufferId, bool>& is_away);

/// Returns the plan with the smallest arena, below `own_arena_bytes`, whose repeated nodes are estimated to take at most this share of the
/// time that all nodes take. It keeps the program's order, spills nothing, and holds for runs as OrderChoice::binds_next_versions. Null:
/// there is none.
/// @param pays  prefers the plan that pays best: each percent of the time must free four percent of the arena
std::shared_ptr<const BudgetedPlan> plan_for_time(const Binding& binding, double share, bool pays, size_t own_arena_bytes);

/// Returns a plan with the moves and places of a plan for other extents. Null: those extents are too small.
std::shared_ptr<const BudgetedPlan> plan_as_for(const BudgetedPlan& larger, const Binding& binding);

}  // namespace treadle::exec
