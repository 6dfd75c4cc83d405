// Assigns buffers offsets in one arena. This code knows sizes and lifetimes, but no tensors or graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "treadle/memory.h"

namespace treadle::memory {

struct PlanOptions {
  size_t alignment = 64;  ///< in bytes, a power of two; all offsets except fixed ones are multiples of it
  /// Number of attempts to improve a plan whose size is above the lower bound. This is a count rather than a time, so that equal buffers
  /// always get the same plan. Large plans make fewer attempts.
  int improvement_rounds = 50;
};

/// Assigns every buffer an offset. Buffers whose lifetimes overlap get disjoint bytes. Keeps the smallest arena of several greedy orders,
/// and then improves it (PlanOptions::improvement_rounds).
/// @throws Error(invalid_argument) if first >= last, if the alignment is not a power of two, or if two fixed buffers that are alive
///         together overlap; Error(resource_exhausted) if the sum of the sizes overflows
/// Sources: greedy by size and by breadth, Pisarchyk and Lee 2020, arXiv:2001.03288; the improvement is squeaky wheel optimization, Joslin
/// and Clements 1999, JAIR 10: buffers that reach the top are placed earlier in the next round.
ArenaPlan plan_arena(std::span<const Buffer> buffers, const PlanOptions& options = {});

/// Plans buffers whose conflicts are given by any symmetric relation over indices, such as a partial order of steps. Greedy by size. The
/// plan's `lower_bound_bytes` is only the size of the largest buffer, since finding cliques is hard.
ArenaPlan plan_arena(std::span<const size_t> sizes_bytes, const std::function<bool(size_t, size_t)>& conflict, size_t alignment = 64);

/// Returns the arena's size in bytes if buffers are placed in the order in which their lifetimes begin, each in the smallest free gap.
/// Allocators that record a run make such plans (ONNX Runtime's memory pattern). For comparisons only; ignores fixed offsets.
size_t best_fit_in_order_bytes(std::span<const Buffer> buffers, size_t alignment);

/// Returns (step, bytes) for each step in which the number of bytes alive changes, in order; the bytes are alive from this step on.
/// @param alignment  sizes are rounded up to multiples of it; 1: no rounding
std::vector<std::pair<int32_t, size_t>> live_bytes(std::span<const Buffer> buffers, size_t alignment = 1);
/// Returns the maximum number of bytes that are alive at once.
size_t max_live_bytes(std::span<const Buffer> buffers, size_t alignment = 1);

}  // namespace treadle::memory
