// Chooses buffers that leave memory for some time, so that a run fits a budget. This code knows sizes and steps, but no tensors or graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace treadle::memory {

/// A buffer must be in memory in the steps that use it. Between two uses, its content may be elsewhere.
struct BudgetBuffer {
  struct Use {
    int32_t step;
    bool writes;  ///< the step changes the content
  };
  size_t size_bytes = 0;
  std::vector<Use> uses;     ///< ascending by step; the first use writes
  bool stays = false;        ///< must stay in memory between its first and its last use
  bool begins_away = false;  ///< initially the content is in the spill file; it is loaded for the first use
};

/// A way to recompute a buffer's content for one of its uses, so that its memory is free between that use and the previous one.
struct Recipe {
  int32_t buffer = 0, step = 0;  ///< a step that uses the buffer, and for which it is recomputed
  double cost_ns = 0;
  std::vector<int32_t> reads;  ///< buffers that must be in memory at the step, with the content that they had in the first computation
  size_t extra_bytes = 0;      ///< additional memory during the recomputation
};

struct BudgetOptions {
  size_t alignment = 64;
  /// Costs of writing a byte to the spill file, and of reading it.
  double spill_ns_per_byte = 0.4, load_ns_per_byte = 0.3;
  double spill_ns = 10'000;  ///< fixed cost per transfer
  bool may_spill = true;     ///< false: buffers that cannot be recomputed stay in memory
  /// Makes a plan in one quick attempt that keeps at most this many bytes alive, even if holes make its arena larger.
  bool one_try = false;
};

struct BudgetPlan {
  /// A buffer's stay in memory, from step `first` to `last`, inclusive. A recipe's extra memory is buffer -1 - recipe, for one step.
  struct Segment {
    int32_t buffer, first, last;
    size_t offset;
  };
  enum class Move : uint8_t { spill, load, recompute };
  /// An action before a step. Before each step, buffers are first spilled, then loaded, then recomputed in the order of the recipes.
  struct Transfer {
    int32_t step;
    Move move;
    int32_t buffer;
    int32_t segment;  ///< the segment that a spill ends, or that a load or recomputation begins
    int32_t recipe = -1;
    int32_t extra = -1;  ///< the segment of the recipe's extra memory; -1: none
  };
  std::vector<Segment> segments;
  std::vector<Transfer> transfers;  ///< sorted by step
  size_t arena_bytes = 0;
  double cost_ns = 0;        ///< estimated cost of all transfers
  size_t spilled_bytes = 0;  ///< bytes written to the spill file
};

/// Returns the maximum number of bytes that a step uses. No run can need less memory.
size_t largest_working_set(size_t num_steps, std::span<const BudgetBuffer> buffers, size_t alignment = 64);

/// Chooses buffers to spill or recompute, the cheapest per byte first, until no step exceeds the budget. Then assigns offsets to the
/// buffers that stay in memory. Recipes must be ordered such that each reads only results of earlier ones.
/// @param capacity_bytes  budget: maximum size of the arena
/// @return a plan whose arena is at most this large; if none was found, the plan with the smallest arena
BudgetPlan plan_budget(size_t num_steps, std::span<const BudgetBuffer> buffers, std::span<const Recipe> recipes, size_t capacity_bytes,
                       const BudgetOptions& options = {});

/// The estimate of a plan. It takes a small part of the plan's time, as no offsets are assigned.
struct BudgetEstimate {
  size_t live_bytes = 0;  ///< maximum number of bytes in memory at once; the arena is hardly larger
  double cost_ns = 0;
};
BudgetEstimate estimate_budget(size_t num_steps, std::span<const BudgetBuffer> buffers, std::span<const Recipe> recipes,
                               size_t capacity_bytes, const BudgetOptions& options = {});

}  // namespace treadle::memory
