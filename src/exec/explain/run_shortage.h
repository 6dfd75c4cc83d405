// Describes the memory that a run had in use when memory ran out. The text becomes the details of the error.
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

/// A snapshot of the memory of a run on the host.
struct RunSnapshot {
  static constexpr size_t kAway = SIZE_MAX;  ///< marks a buffer that is not in the arena now

  const Binding& binding;
  const BudgetedPlan* budget = nullptr;  ///< the budgeted plan that the run follows; null: the binding's offsets
  IdVector<BufferId, size_t> places;     ///< for each buffer, its offset in the arena, or kAway
  size_t arena_bytes = 0;                ///< allocated size of the arena
  size_t planned_bytes = 0;              ///< size that the plan needs
  size_t arena_capacity = SIZE_MAX;      ///< size that the memory limit permits; SIZE_MAX: no limit
  struct Held {
    SlotId slot;
    size_t size_bytes;
  };
  std::vector<Held> held;  ///< feeds, and values with memory of their own
  const MemoryAccount* account = nullptr;

  size_t step = 0;              ///< index of the current instruction in the order of execution
  InstructionId instruction{};  ///< the instruction at that step
  bool begun = true;            ///< false: memory ran out before the first step
  /// True if instructions run in parallel. Then the text counts every buffer that may be in use at the same time as this instruction.
  bool by_readiness = false;
};

/// Returns a text that lists the values that are alive, compares the arena with the plan, and suggests what would need less memory.
std::string describe_memory(const RunSnapshot& run);
/// Returns a text for a run that ran out of memory before its arena was planned: it lists the account's bytes and the weights.
std::string describe_unbound(const Program& program, const MemoryAccount* account);

/// Returns a phrase that says how much a smaller batch would save. The batch is halved once, or under a limit until the arena fits. Empty
/// if a smaller batch would not help, or if no symbol is the first extent of an input.
/// @param arena        what the phrase calls the arena, e.g. "the arena"
/// @param planned      size of the arena for the present batch, in bytes
/// @param capacity     largest size that a limit permits; SIZE_MAX: no limit
/// @param arena_bytes  returns the size of the arena for other values of the program's expressions
std::string describe_smaller_batch(const Program& program, const Binding& binding, std::string_view arena, size_t planned, size_t capacity,
                                   const std::function<size_t(const std::vector<int64_t>&)>& arena_bytes);

}  // namespace treadle::exec
