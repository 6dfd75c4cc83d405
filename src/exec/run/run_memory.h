// Estimates the memory that a run allocates while its nodes run, beside the arena and the outputs that it allocates when it begins.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

#include "core/base/checked.h"
#include "exec/plan/binding.h"

namespace treadle::exec {

class Plans;
struct RunControl;

/// The bytes that an allocation of this size takes from a limit.
inline size_t rounded(size_t bytes) { return align_up(std::max<size_t>(bytes, 1), Storage::kAlignment); }

/// Bytes that are allocated at the same time, at the node where they are the most. Bodies of If, Loop and Scan count (their arenas and
/// results, copies of their operands, and slices until they are stacked), and values whose sizes come out in the run. Not counted are
/// scratch of nodes that are bound in the run, and elements of strings and sequences.
struct RunMemory {
  size_t certain_bytes = 0;         ///< the least: of an If the smaller branch, of a Loop the iterations that are known, or one
  size_t possible_bytes = 0;        ///< with every size at its upper bound, where there is one
  const Node* unbounded = nullptr;  ///< a node with a size that has no upper bound; null: there is none, `possible_bytes` is the most
};

/// @param plans    of the binding's program.
/// @param control  has the threads that the bodies will be bound for.
/// @param is_lent  whether the caller owns the memory of a feed: a node that keeps the feed beyond its own end gets a copy.
/// @param at_once  nodes may run at the same time, so that their bytes add up.
RunMemory memory_beside_arena(Plans& plans, const Binding& binding, const RunControl& control,
                              const std::function<bool(size_t input)>& is_lent, bool at_once);

}  // namespace treadle::exec
