// Estimates the memory that nodes allocate during a run. Arena and outputs are not included; they are allocated when the run begins.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

#include "core/base/checked.h"
#include "exec/plan/binding.h"

namespace treadle::exec {

class Plans;
struct RunControl;

/// Returns the number of bytes that counts against a limit for an allocation of this size.
inline size_t rounded(size_t bytes) { return align_up(std::max<size_t>(bytes, 1), Storage::kAlignment); }

/// The peak number of bytes that nodes have allocated at the same time. Includes the bodies of If, Loop and Scan (arenas, results, copies
/// of operands, and slices until they are stacked) and values whose sizes depend on data. Excludes scratch memory of nodes that are bound
/// during the run, and elements of strings and sequences.
struct RunMemory {
  size_t certain_bytes = 0;         ///< lower bound: the smaller branch of an If, and the known iterations of a Loop or one iteration
  size_t possible_bytes = 0;        ///< upper bound of all sizes that have an upper bound
  const Node* unbounded = nullptr;  ///< a node with a size that has no upper bound; null: there is none
};

/// @param plans    the plans of the binding's program.
/// @param control  contains the number of threads that the bodies will be bound for.
/// @param is_lent  returns true if the caller owns a feed's memory; a node that keeps the feed must then copy it.
/// @param at_once  true if nodes may run at the same time, so that their bytes add up.
RunMemory memory_beside_arena(Plans& plans, const Binding& binding, const RunControl& control,
                              const std::function<bool(size_t input)>& is_lent, bool at_once);

}  // namespace treadle::exec
