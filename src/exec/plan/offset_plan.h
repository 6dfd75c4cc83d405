// Offsets of a program's buffers in an arena.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "exec/program/program.h"

namespace treadle::exec {

/// Offsets of a program's buffers. Valid for every binding whose buffers are no larger than `sizes`.
struct OffsetPlan {
  IdVector<BufferId, size_t> sizes, offsets;  // all in bytes
  size_t arena_bytes = 0;
  size_t lower_bound_bytes = 0;  // the largest sum of live bytes at any step: no plan can be smaller

  /// Returns true if buffers of these sizes fit into the plan.
  bool holds(std::span<const size_t> other) const {
    return std::equal(other.begin(), other.end(), sizes.begin(), sizes.end(), [](size_t a, size_t b) { return a <= b; });
  }
};

/// Computes offsets and arena size from the plan's buffer sizes. They are valid for every permitted order of the program's instructions.
void add_offsets(const Program& program, OffsetPlan& plan);

/// Returns the size in bytes of a slot, for given values of the program's symbolic expressions.
size_t bytes_for(const Program& program, SlotId slot, std::span<const int64_t> values);

/// Rounds sizes up, so that one plan serves extents that grow from run to run. Each symbol is rounded up to one of the eight values between
/// two powers of two, by at most 12.5 %.
/// @param sizes   sizes for `values`, in bytes
/// @param values  the values of the program's expressions
IdVector<BufferId, size_t> bucketed_sizes(const Program& program, const IdVector<BufferId, size_t>& sizes,
                                          const std::vector<int64_t>& values);

}  // namespace treadle::exec
