// What a run takes beside its arena and the outputs that it makes room for when it begins.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

#include "core/checked.h"
#include "exec/plan/plans.h"
#include "exec/run/run_control.h"

namespace treadle::exec {

/// The bytes that an allocation of this size takes from a limit.
inline size_t rounded(size_t bytes) { return align_up(std::max<size_t>(bytes, 1), Storage::kAlignment); }

/// At the node with the most. Counted are bodies of If, Loop and Scan (their arenas, what they hand over, copies of what they are given,
/// and slices until they are stacked), and values whose sizes come out in the run. Not counted: scratch of nodes bound in the run, elements
/// of strings and sequences.
struct RunMemory {
  size_t certain_bytes = 0;         ///< whatever the sizes: of an If the smaller branch, of a Loop as many iterations as are known, or one
  size_t possible_bytes = 0;        ///< with every size at its largest, as far as a bound is known
  const Node* unbounded = nullptr;  ///< a node of which more may come out; null: `possible_bytes` is the most
};

/// @param plans    of the binding's program.
/// @param control  what the bodies will be bound for.
/// @param is_lent  whether a feed's memory is the caller's, so that it is copied where it is handed on by reference.
/// @param at_once  nodes may run at the same time: their bytes add up.
RunMemory memory_beside_arena(Plans& plans, const Binding& binding, const RunControl& control,
                              const std::function<bool(size_t input)>& is_lent, bool at_once);

}  // namespace treadle::exec
