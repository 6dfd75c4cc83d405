// Outputs in the arena: where nothing else lies any more when they are made, there is room for them that the run has paid for already.
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
    size_t offset = kNone;  ///< in the arena
    int32_t made_at = 0;    ///< the step that makes the output
    bool found() const { return offset != kNone; }
  };
  std::vector<Place> places;  ///< per Program::preallocated(); not found: it is no gradient, or there is no room for it
  size_t arena_bytes = 0;     ///< what the run takes anyway, and what gradients reach beyond it
};

/// Where the gradients that a run hands out may lie in its arena, from the step that makes them to the run's end and beyond: the caller
/// takes them, and with them the arena. Runs go in the program's order, or by the plan if there is one. A gradient for which there is too
/// little room at the arena's end makes it longer, by less than it takes.
Lodgings find_lodgings(const Binding& binding, const BudgetedPlan* plan);

}  // namespace treadle::exec
