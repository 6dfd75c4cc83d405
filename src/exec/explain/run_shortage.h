// What a run held when memory ran out: for the text of the error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "exec/plan/binding.h"
#include "exec/plan/budget.h"
#include "exec/program/program.h"
#include "treadle/allocator.h"

namespace treadle::exec {

/// What a run on the host has, and where it is.
struct RunSnapshot {
  static constexpr size_t kAway = SIZE_MAX;  ///< the place of a buffer that is not in the arena at the moment

  const Binding& binding;
  const BudgetedPlan* budget = nullptr;  ///< the plan that the run follows; null: the binding's offsets
  IdVector<BufferId, size_t> places;     ///< offsets in the arena
  size_t arena_bytes = 0;                ///< allocated
  size_t planned_bytes = 0;              ///< that the arena is to have
  size_t arena_capacity = SIZE_MAX;      ///< that a limit leaves to it
  struct Held {
    SlotId slot;
    size_t size_bytes;
  };
  std::vector<Held> held;  ///< fed values, and those that have memory of their own
  const MemoryAccount* account = nullptr;

  size_t step = 0;              ///< in the order in which instructions run
  InstructionId instruction{};  ///< at that step
  bool begun = true;            ///< false: memory ran out before the first step
  bool by_readiness = false;    ///< instructions run at the same time: all that may be alive beside this one counts
};

/// What is alive in a run on the host, its arena against the plan, and what would need less.
std::string describe_memory(const RunSnapshot& run);
/// What there is where the extents of a run could not be bound.
std::string describe_unbound(const Program& program, const MemoryAccount* account);

/// With half the batch, and under a limit with half of it again until the arena fits, if it ever does: no line of its own, and empty if no
/// symbol is the first extent of inputs, or it would not help.
/// @param arena        whose: "the arena"
/// @param planned      its bytes as it is
/// @param arena_bytes  for values of the program's symbols
std::string describe_smaller_batch(const Program& program, const Binding& binding, std::string_view arena, size_t planned, size_t capacity,
                                   const std::function<size_t(const std::vector<int64_t>&)>& arena_bytes);

}  // namespace treadle::exec
