/// Memory planning as a library: offsets of buffers in one arena. The planner knows sizes and lifetimes, but no tensors and no graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "treadle/export.h"

namespace treadle::memory {

/// A block of bytes that is needed in the steps [first, last) of a plan; a step is the execution of one node.
struct Buffer {
  static constexpr size_t kAnywhere = std::numeric_limits<size_t>::max();

  size_t size_bytes = 0;
  int32_t first = 0, last = 0;
  size_t fixed_offset = kAnywhere;  ///< in bytes; used unchanged, even if unaligned
};

struct ArenaPlan {
  std::vector<size_t> offsets;   ///< bytes, in the order of the buffers; 0 for empty buffers
  size_t size_bytes = 0;         ///< size of the arena, a multiple of the alignment
  size_t lower_bound_bytes = 0;  ///< no plan can be smaller: maximum of bytes alive at once, with buffers rounded up to the alignment
  std::string_view strategy;     ///< name of the order of placement that gave the smallest arena
};

struct SearchOptions {
  size_t alignment = 64;  ///< bytes, a power of two
  /// If not 0, the search ends with the first plan of at most this many bytes. 0: the search looks for the smallest arena.
  size_t capacity_bytes = 0;
  double time_limit_seconds = 10;
  /// The search ends after this many visited states. Unlike a time limit, this gives the same plan on every machine.
  int64_t max_steps = std::numeric_limits<int64_t>::max();
};

/// Assigns an offset to every buffer. Buffers whose lifetimes overlap get disjoint bytes. Greedy heuristics run first. If their plans
/// exceed the capacity (or, without one, the lower bound), an exact search follows. lower_bound_bytes includes what the search proved: if
/// it equals the size, no plan is smaller; if it exceeds the capacity, no plan fits. Plans are only greedy for buffers with fixed offsets,
/// more than 4,096 buffers, or arenas of more than 2^30 units (the greatest common divisor of aligned sizes).
/// @throws Error(invalid_argument) if first >= last, if the alignment is not a power of two, or if two fixed buffers that are alive
///         together overlap; Error(resource_exhausted) if the sum of sizes overflows
/// Sources: docs/plan-memory.md.
TREADLE_API ArenaPlan plan_arena_exactly(std::span<const Buffer> buffers, const SearchOptions& options = {});

}  // namespace treadle::memory
