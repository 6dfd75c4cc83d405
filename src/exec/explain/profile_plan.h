// The part of a profile that needs no run: the nodes with their kernels, shapes and costs, and the planned buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/plan/plans.h"
#include "treadle/profile.h"

namespace treadle::exec {

/// Appends the program's instructions, with the shapes of the binding used last. Instructions of a body (of If, Loop or Scan) follow the
/// node that owns the body, and have its phase. Backward nodes refer to their forward nodes.
/// @param parent    index in `nodes` of the node that owns this body; -1: the program is not a body
/// @param index_of  receives the index of each node, by the id of the name under which the recorder records the node
void add_profiled_nodes(Plans& plans, int32_t parent, std::vector<ProfiledNode>& nodes, std::unordered_map<uint32_t, int32_t>& index_of);

/// Returns the profile's node for a copy of a value between devices.
/// @param slot  the value's slot
ProfiledNode profiled_copy(Plans& plans, SlotId slot, const std::string& from, const std::string& to);

/// Appends the constants and packed weights of the program and its bodies, by name.
void add_held_weights(const Program& program, std::vector<MemoryHolding>& holdings);

/// Describes the buffers in a run's arena, including gradients that the run hands out.
struct ProfiledArena {
  std::vector<ProfiledBuffer> buffers;
  size_t arena_bytes = 0;
  size_t lower_bound_bytes = 0;  ///< the largest sum of live bytes at any step
};
/// Returns the arena of the plan used last; empty before the first run.
ProfiledArena profiled_arena(Plans& plans);

}  // namespace treadle::exec
