// Runs in less memory than they would like: values are written to a file or made anew between the nodes that need them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/plan/proof.h"
#include "exec/program/program.h"

namespace treadle::exec {

class Binding;

/// What a plan was made of: extents of which no buffer is larger can have the same places.
struct BudgetBasis;

/// Where everything lies in the arena, node by node, and what moves between nodes. Of one binding and one budget.
struct BudgetedPlan {
  static constexpr size_t kNowhere = SIZE_MAX;

  enum class Kind : uint8_t { spill, load, recompute };
  struct Move {
    Kind kind;
    BufferId buffer;
    size_t offset;  ///< in the arena: where it was, or where it comes to
    uint32_t first_replay = 0, num_replays = 0;
  };
  /// One instruction, run again to make a value anew.
  struct Replay {
    InstructionId instruction;
    size_t scratch_offset;
    uint32_t first_offset;  ///< into replay_offsets: one per operand
  };
  struct Stay {
    int32_t first, last;  ///< steps, both included
    size_t offset;
  };

  /// Memory besides, of values that are made anew, at one step.
  struct Extra {
    int32_t step;
    size_t offset, size_bytes;
  };

  /// Instructions in the order in which they run; empty: the program's. Steps below are positions in it.
  std::vector<InstructionId> order;
  size_t arena_bytes = 0;
  size_t spilled_bytes = 0, num_recomputed = 0;
  double cost_ns = 0;                   ///< of the moves, estimated
  std::vector<size_t> operand_offsets;  ///< per operand: in the arena; kNowhere for what lies elsewhere
  IdVector<InstructionId, size_t> scratch_offsets;
  std::vector<Move> moves;
  std::vector<uint32_t> first_move;  ///< per step, and one more: what happens before it
  std::vector<Replay> replays;
  std::vector<size_t> replay_offsets;           ///< kNowhere: where the operand usually is
  IdVector<BufferId, std::vector<Stay>> stays;  ///< when each is in memory, and where
  std::vector<Extra> extras;
  IdVector<BufferId, std::vector<int32_t>> drops;  ///< steps after which it is away without having been written to the file
  IdVector<BufferId, size_t> file_offsets;         ///< the same in all plans of a binding
  IdVector<BufferId, bool> carried;                ///< of a plan that begins in mid-run: it has its content from before; else empty
  std::shared_ptr<const BudgetBasis> basis;
  Proof proof;  ///< where plans are verified, a run that follows the plan proves it first

  InstructionId instruction_at(size_t step) const { return order.empty() ? id_at<InstructionId>(step) : order[step]; }
  bool is_alive_around(BufferId buffer, int32_t step) const {  ///< used before the step, and at it or later
    const auto& list = stays[buffer];
    if (list.empty() || step > list.back().last) return false;
    return list.front().first < step || (!carried.empty() && carried[buffer]);
  }
};

/// Which orders of instructions a plan may have.
struct OrderChoice {
  bool free = false;                 ///< any in which every instruction finds what it finds in the program's order
  std::vector<InstructionId> fixed;  ///< if not free: this one; empty: the program's
  /// No output is bound to memory of a feed but the next versions of feeds, each to its own.
  bool binds_next_versions = false;
  bool operator==(const OrderChoice&) const = default;
};

/// The plan for this binding and an arena of at most `capacity_bytes` whose moves are estimated to cost the least; where there is none, one
/// with the smallest arena that was found.
std::shared_ptr<const BudgetedPlan> plan_for_budget(const Binding& binding, size_t capacity_bytes, const OrderChoice& order);

/// The same from a step of the order on, for a run that is there: what comes before needs no room any more. What is in memory at the step
/// stays there as far as the capacity reaches, of what is not needed at once the first that is needed soonest.
/// @param is_away  it is in the file at the moment
std::shared_ptr<const BudgetedPlan> plan_rest(const Binding& binding, size_t capacity_bytes, const OrderChoice& order, int32_t step,
                                              const IdVector<BufferId, bool>& is_away);

/// The plan with the smallest arena, below `own_arena_bytes`, whose recomputation is estimated to take at most this share of the time that
/// all nodes take; in the program's order, without spilling, for runs that bind outputs to no feeds' memory but next versions to their own.
/// Null where there is none.
/// @param pays  of such plans the one that pays best: a percent of the time has to free four of the arena
std::shared_ptr<const BudgetedPlan> plan_for_time(const Binding& binding, double share, bool pays, size_t own_arena_bytes);

/// The same moves and places as in a plan of other extents. Null if they do not suffice.
std::shared_ptr<const BudgetedPlan> plan_as_for(const BudgetedPlan& larger, const Binding& binding);

}  // namespace treadle::exec
