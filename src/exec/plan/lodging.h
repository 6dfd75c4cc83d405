// Places gradients that a run hands out in parts of its arena that no later step uses, so that they need no memory of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/program/program.h"

namespace treadle::exec {

class Binding;
struct BudgetedPlan;

struct Lodgings {
  struct Place {
    static constexpr size_t kNone = SIZE_MAX;
    size_t offset = kNone;  ///< offset in the arena in bytes
    int32_t made_at = 0;    ///< the first step that writes the output
    bool found() const { return offset != kNone; }
  };
  /// One per entry of Program::preallocated(). Its offset is kNone if the slot is not an output gradient or does not fit into the arena.
  std::vector<Place> places;
  size_t arena_bytes = 0;  ///< size of the arena, including bytes that gradients need beyond the planned size
};

/// Finds arena offsets for the gradients that a run hands out. Each gradient occupies its bytes from the step that makes it until the
/// caller frees it, and keeps the arena allocated. A gradient that fits nowhere may begin in the free bytes at the arena's end and enlarge
/// the arena.
/// @param plan  the plan that the run follows; null: the program's order and the binding's offsets
Lodgings find_lodgings(const Binding& binding, const BudgetedPlan* plan);

}  // namespace treadle::exec
