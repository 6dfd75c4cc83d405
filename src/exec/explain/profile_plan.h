// What a profile knows of a program without having run it: nodes, kernels, shapes, costs, and the planned buffers.
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

/// Appends the program's instructions, those of bodies behind the node that they belong to. Shapes are those of the binding used last.
/// Those of bodies are in the phase of their node; backward nodes know their forward nodes.
/// @param index_of  gets the nodes' numbers, by the names of their records
void add_profiled_nodes(Plans& plans, int32_t parent, std::vector<ProfiledNode>& nodes, std::unordered_map<uint32_t, int32_t>& index_of);

/// A copy of a value to another device. @param slot  the value's
ProfiledNode profiled_copy(Plans& plans, SlotId slot, const std::string& from, const std::string& to);

/// Appends the program's constants and packed weights, bodies' too, by name.
void add_held_weights(const Program& program, std::vector<MemoryHolding>& holdings);

/// What lies in a run's arena: gradients that it hands out, too.
struct ProfiledArena {
  std::vector<ProfiledBuffer> buffers;
  size_t arena_bytes = 0;
  size_t lower_bound_bytes = 0;  ///< the largest sum of bytes alive at one step
};
/// Of the plan used last; empty before the first run.
ProfiledArena profiled_arena(Plans& plans);

}  // namespace treadle::exec
