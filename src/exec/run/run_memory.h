// Estimates the memory that nodes allocate during a run. It excludes arena and outputs, which are allocated when the run begins.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

#include "core/base/checked.h"
#include "exec/plan/binding.h"

namespace treadle::exec {

class Plans;
struct RunControl;

/// Returns the bytes that a limit counts for an allocation of this size.
inline size_t rounded(size_t bytes) { return align_up(std::max<size_t>(bytes, 1), Storage::kAlignment); }

/// The peak over the nodes of bytes allocated at the same time. Includes the bodies of If, Loop and Scan (arenas, results, copies of
/// operands, and slices until they are stacked) and values whose sizes depend on data. Excludes scratch memory of nodes bound during the
/// run, and elements of strings and sequences.
struct RunMemory {
  size_t certain_bytes = 0;         ///< lower bound: an If's smaller branch, a Loop's known iterations or one
  size_t possible_bytes = 0;        ///< upper bound, for all sizes that have one
  const Node* unbounded = nullptr;  ///< a node with a size without upper bound; null: there is none
};

/// @param plans    the plans of the binding's program.
/// @param control  has the threads that the bodies will be bound for.
/// @param is_lent  true if the caller owns a feed's memory: a node that keeps the feed after its end then makes a copy.
/// @param at_once  nodes may run concurrently, so that their bytes add up.
RunMemory memory_beside_arena(Plans& plans, const Binding& binding, const RunControl& control,
                              const std::function<bool(size_t input)>& is_lent, bool at_once);

}  // namespace treadle::exec
