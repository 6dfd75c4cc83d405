/// Memory planning as a library: offsets of buffers in one arena. Knows bytes and lifetimes; neither tensors nor graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "treadle/export.h"

namespace treadle::memory {

/// A block of bytes that lives for the steps [first, last) of a plan.
struct Buffer {
  static constexpr size_t kAnywhere = std::numeric_limits<size_t>::max();

  size_t size_bytes = 0;
  int32_t first = 0, last = 0;
  size_t fixed_offset = kAnywhere;  ///< in bytes; taken as it is, aligned or not
};

struct ArenaPlan {
  std::vector<size_t> offsets;   ///< bytes, in the order of the buffers; 0 for empty buffers
  size_t size_bytes = 0;         ///< of the arena, a multiple of the alignment
  size_t lower_bound_bytes = 0;  ///< no plan can be smaller: the most bytes alive at once, each buffer rounded up to the alignment
  std::string_view strategy;     ///< the order that gave the smallest arena
};

struct SearchOptions {
  size_t alignment = 64;  ///< bytes, a power of two
  /// Bytes: the search ends with the first plan that is not larger. 0: it looks for the smallest arena.
  size_t capacity_bytes = 0;
  double time_limit_seconds = 10;
  /// States that may be visited; unlike the time, the same on every machine.
  int64_t max_steps = std::numeric_limits<int64_t>::max();
};

/// Assigns every buffer an offset; buffers whose lives overlap get disjoint bytes. Greedy plans first; where these are above the capacity
/// (or the lower bound), an exact search goes on. The plan's lower bound includes what
/// the search proved: equal to the size, the plan is the smallest there is; above the capacity, no plan fits it.
/// Buffers with fixed offsets are planned greedily only; so are more than 4,096 buffers, and arenas of more than 2^30 units (the
/// greatest common divisor of the aligned sizes).
/// @throws Error(invalid_argument) if first >= last, if the alignment is not a power of two, or if two fixed buffers that are alive
///         together overlap; Error(resource_exhausted) if the sum of the sizes overflows.
/// Sources: docs/plan-memory.md.
TREADLE_API ArenaPlan plan_arena_exactly(std::span<const Buffer> buffers, const SearchOptions& options = {});

}  // namespace treadle::memory
