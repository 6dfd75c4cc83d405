// Where the buffers of a program lie in an arena.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "exec/program/program.h"

namespace treadle::exec {

/// Offsets of a program's buffers, good for every binding whose buffers are not larger than those it was made for.
struct OffsetPlan {
  IdVector<BufferId, size_t> sizes, offsets;  // bytes
  size_t arena_bytes = 0;
  size_t lower_bound_bytes = 0;  // the largest sum of bytes alive at one step

  /// Whether buffers of these sizes have room.
  bool holds(std::span<const size_t> other) const {
    return std::equal(other.begin(), other.end(), sizes.begin(), sizes.end(), [](size_t a, size_t b) { return a <= b; });
  }
};

/// Finds offsets and arena for the plan's sizes, for every order of instructions that the program may run in.
void add_offsets(const Program& program, OffsetPlan& plan);

/// Bytes of a value for these values of the program's expressions.
size_t bytes_for(const Program& program, SlotId slot, std::span<const int64_t> values);

/// Sizes for extents that grow from run to run: each symbol goes up to the next of eight bounds per power of two, at most 12.5 % above.
/// @param sizes   for `values`
/// @param values  of the program's expressions
IdVector<BufferId, size_t> bucketed_sizes(const Program& program, const IdVector<BufferId, size_t>& sizes,
                                          const std::vector<int64_t>& values);

}  // namespace treadle::exec
