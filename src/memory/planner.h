// Offsets of buffers in one arena. Knows bytes and lifetimes; neither tensors nor graphs.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "treadle/memory.h"

namespace treadle::memory {

struct PlanOptions {
  size_t alignment = 64;  ///< bytes, a power of two; every offset that is not fixed is a multiple of it
  /// How often an order that did not reach the lower bound is changed and tried again. Counted and not timed, so that the same
  /// buffers always get the same plan; large plans make fewer attempts.
  int improvement_rounds = 50;
};

/// Assigns every buffer an offset; buffers whose lives overlap get disjoint bytes.
/// Tries several greedy orders and keeps the smallest arena, then improves on it (PlanOptions::improvement_rounds).
/// @throws Error(invalid_argument) if first >= last, if the alignment is not a power of two, or if two fixed buffers that are alive
///         together overlap; Error(resource_exhausted) if the sum of the sizes overflows.
/// Sources: greedy by size and by breadth, Pisarchyk and Lee 2020, arXiv:2001.03288; the improvement is squeaky wheel optimisation,
/// Joslin and Clements 1999, JAIR 10: buffers that reach the top are placed earlier in the next round.
ArenaPlan plan_arena(std::span<const Buffer> buffers, const PlanOptions& options = {});

/// The same for any symmetric conflict relation over indices, for plans whose order is partial. Greedy by size.
/// `lower_bound_bytes` is the largest buffer's size, as finding cliques is hard.
ArenaPlan plan_arena(std::span<const size_t> sizes_bytes, const std::function<bool(size_t, size_t)>& conflict, size_t alignment = 64);

/// The arena's size in bytes if every buffer takes the smallest gap that is free when it starts to live, in that order: how allocators plan
/// that record one run (ONNX Runtime's memory pattern). To compare with. Fixed offsets are not looked at.
size_t best_fit_in_order_bytes(std::span<const Buffer> buffers, size_t alignment);

/// The most bytes that are alive at once.
/// @param alignment  sizes are rounded up to it; 1 counts the plain sizes.
size_t max_live_bytes(std::span<const Buffer> buffers, size_t alignment = 1);

}  // namespace treadle::memory
