// Which buffers of a run leave memory for a while, so that the rest fits a budget. Knows bytes and steps; neither tensors nor graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace treadle::memory {

/// A buffer must be in memory at the steps that use it. Between two of them it may be elsewhere.
struct BudgetBuffer {
  struct Use {
    int32_t step;
    bool writes;  ///< the content is another one afterwards
  };
  size_t size_bytes = 0;
  std::vector<Use> uses;     ///< ascending by step; the first one writes
  bool stays = false;        ///< from the first use to the last
  bool begins_away = false;  ///< what was there before the first use has been written to the file: it is loaded for the first use
};

/// A way to make a buffer's content anew for one of its uses, instead of keeping it since the use before.
struct Recipe {
  int32_t buffer = 0, step = 0;  ///< a step that uses the buffer
  double cost_ns = 0;
  std::vector<int32_t> reads;  ///< buffers that must be in memory at the step, and whose content then is what it was at the first time
  size_t extra_bytes = 0;      ///< of memory besides, while it is made
};

struct BudgetOptions {
  size_t alignment = 64;
  /// Writing to where buffers are spilled, and reading it back.
  double spill_ns_per_byte = 0.4, load_ns_per_byte = 0.3;
  double spill_ns = 10'000;  ///< of each such transfer, besides
  bool may_spill = true;     ///< false: what is not made anew stays
  /// Quickly: the plan that keeps so many bytes alive, whatever holes its arena has.
  bool one_try = false;
};

struct BudgetPlan {
  /// A buffer in memory, from one step to another, both included. Extra memory of a recipe: buffer -1 - recipe, for one step.
  struct Segment {
    int32_t buffer, first, last;
    size_t offset;
  };
  enum class Move : uint8_t { spill, load, recompute };
  /// What happens before a step: first what is spilled, then what is loaded, then what is made anew, in the order of the recipes.
  struct Transfer {
    int32_t step;
    Move move;
    int32_t buffer;
    int32_t segment;  ///< that it leaves, or that it comes to
    int32_t recipe = -1;
    int32_t extra = -1;  ///< segment of the recipe's extra memory
  };
  std::vector<Segment> segments;
  std::vector<Transfer> transfers;  ///< ascending by step
  size_t arena_bytes = 0;
  double cost_ns = 0;        ///< of the transfers, estimated
  size_t spilled_bytes = 0;  ///< that are written
};

/// The most bytes that one step uses: nothing can run with fewer.
size_t largest_working_set(size_t num_steps, std::span<const BudgetBuffer> buffers, size_t alignment = 64);

/// Chooses what is spilled and what is made anew, the cheapest per byte first, until no step holds more than the budget, and places what
/// remains. Recipes must be in an order in which each may read what those before it made.
/// @param capacity_bytes  of the arena.
/// @return a plan whose arena is not larger; where there is none, the smallest that was found, which is larger.
BudgetPlan plan_budget(size_t num_steps, std::span<const BudgetBuffer> buffers, std::span<const Recipe> recipes, size_t capacity_bytes,
                       const BudgetOptions& options = {});

/// What such a plan comes to, without a place for anything: a small part of the time.
struct BudgetEstimate {
  size_t live_bytes = 0;  ///< the most that are kept at once; arenas are hardly larger
  double cost_ns = 0;
};
BudgetEstimate estimate_budget(size_t num_steps, std::span<const BudgetBuffer> buffers, std::span<const Recipe> recipes,
                               size_t capacity_bytes, const BudgetOptions& options = {});

}  // namespace treadle::memory
