// Chooses buffers that leave memory for some time so that a run fits a budget. It knows sizes and steps, but no tensors and no graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace treadle::memory {

/// A buffer must be in memory at steps that use it. Between two uses it may be elsewhere.
struct BudgetBuffer {
  struct Use {
    int32_t step;
    bool writes;  ///< the step changes the content
  };
  size_t size_bytes = 0;
  std::vector<Use> uses;     ///< ascending by step; the first use writes
  bool stays = false;        ///< must stay in memory from the first use to the last
  bool begins_away = false;  ///< the buffer's content is in the file at the beginning, and is loaded for the first use
};

/// A method to recompute a buffer's content for one of its uses, so that its memory is free since the previous use.
struct Recipe {
  int32_t buffer = 0, step = 0;  ///< a step that uses the buffer
  double cost_ns = 0;
  std::vector<int32_t> reads;  ///< buffers that must be in memory at the step, still with the content of the first computation
  size_t extra_bytes = 0;      ///< additional memory during the recomputation
};

struct BudgetOptions {
  size_t alignment = 64;
  /// Cost of writing to the spill file, and of reading it.
  double spill_ns_per_byte = 0.4, load_ns_per_byte = 0.3;
  double spill_ns = 10'000;  ///< fixed cost per transfer
  bool may_spill = true;     ///< false: buffers that cannot be recomputed stay
  /// Makes a quick plan that keeps this many bytes alive, even if holes make its arena larger.
  bool one_try = false;
};

struct BudgetPlan {
  /// A buffer in memory from step `first` to `last`, inclusive. A recipe's extra memory is buffer -1 - recipe, for one step.
  struct Segment {
    int32_t buffer, first, last;
    size_t offset;
  };
  enum class Move : uint8_t { spill, load, recompute };
  /// An action before a step. First buffers are spilled, then loaded, then recomputed in the order of the recipes.
  struct Transfer {
    int32_t step;
    Move move;
    int32_t buffer;
    int32_t segment;  ///< the segment that it leaves or enters
    int32_t recipe = -1;
    int32_t extra = -1;  ///< segment that the recipe uses as extra memory
  };
  std::vector<Segment> segments;
  std::vector<Transfer> transfers;  ///< sorted by step
  size_t arena_bytes = 0;
  double cost_ns = 0;        ///< estimated, of all transfers
  size_t spilled_bytes = 0;  ///< bytes written to the spill file
};

/// The maximum of bytes that a step uses: no run needs less.
size_t largest_working_set(size_t num_steps, std::span<const BudgetBuffer> buffers, size_t alignment = 64);

/// Chooses buffers to spill or recompute, the cheapest per byte first, until no step exceeds the budget. Then assigns offsets to the
/// buffers that stay in memory. Recipes must be ordered such that each reads only results of earlier ones.
/// @param capacity_bytes  of the arena
/// @return a plan whose arena is at most this large or, if there is none, the smallest that was found
BudgetPlan plan_budget(size_t num_steps, std::span<const BudgetBuffer> buffers, std::span<const Recipe> recipes, size_t capacity_bytes,
                       const BudgetOptions& options = {});

/// Estimates a plan without assigning offsets, which takes a small part of the time.
struct BudgetEstimate {
  size_t live_bytes = 0;  ///< maximum of bytes kept at once; the arena is hardly larger
  double cost_ns = 0;
};
BudgetEstimate estimate_budget(size_t num_steps, std::span<const BudgetBuffer> buffers, std::span<const Recipe> recipes,
                               size_t capacity_bytes, const BudgetOptions& options = {});

}  // namespace treadle::memory
