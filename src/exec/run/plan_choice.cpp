#include "exec/run/plan_choice.h"

#include <algorithm>
#include <string>
#include <utility>

#include "exec/plan/binding.h"
#include "exec/program/program.h"

namespace treadle::exec {
namespace {

// Returns the maximum size of the arena in bytes by PlanningRules::arena_share, a share of the arena that these extents need. SIZE_MAX: no
// limit.
size_t share_of_arena(const Binding& binding) {
  const double share = binding.program().planning().arena_share;
  if (share >= 1) return SIZE_MAX;
  return static_cast<size_t>(share * static_cast<double>(binding.budgets().own_arena_bytes())) / Storage::kAlignment * Storage::kAlignment;
}

}  // namespace

size_t PlanChooser::capacity_beside(size_t bytes) const { return std::min(share_of_arena(state_.binding()), pass().arena_capacity(bytes)); }

RunMemory PlanChooser::memory_beside(bool at_once) const {
  const auto is_lent = [&](size_t input) {
    const Datum& feed = state_.held(state_.program().input_slots()[input]);
    return feed.is_tensor() && feed.tensor().storage()->lent();
  };
  return memory_beside_arena(state_.plans(), state_.binding(), control_, is_lent, at_once);
}

// Begins a choice: computes how many bytes nodes allocate besides the arena if the program's own schedule is used.
RunMemory PlanChooser::begin(PlanChoice& choice, size_t output_bytes) const {
  choice.is_capped = capacity_beside(output_bytes) != SIZE_MAX;
  RunMemory beside;
  if (choice.is_capped) beside = memory_beside(/*at_once=*/state_.program().parallel() != nullptr);
  choice.later_bytes = beside.possible_bytes;
  return beside;
}

// Finds a plan that leaves memory for all bytes that nodes may allocate or, failing that, for the bytes that they certainly allocate. Keeps
// to the arena's share if possible. @param beside  receives these bytes for a sequential run. @return false if no plan fits the limits
bool PlanChooser::find_plan(PlanChoice& choice, const OrderChoice& order, size_t output_bytes, RunMemory& beside) const {
  const Binding& binding = state_.binding();
  if (choice.is_capped && state_.program().parallel()) beside = memory_beside(/*at_once=*/false);
  for (const size_t bytes : {beside.possible_bytes, beside.certain_bytes}) {
    choice.later_bytes = bytes;
    const size_t limit = pass().arena_capacity(output_bytes + bytes);
    if (limit == 0 && bytes > beside.certain_bytes) continue;
    choice.plan = binding.budgets().within(std::min(share_of_arena(binding), limit), order);
    if (rounded(choice.plan->arena_bytes) <= limit) return true;
  }
  return false;
}

PlanChoice PlanChooser::for_run() const {
  PlanChoice choice;
  const Binding& binding = state_.binding();
  const size_t output_bytes = outputs_.bytes_to_allocate();
  // Any order is allowed only if outputs are bound to whole feeds, because the planner does not know which nodes read parts of a feed.
  const OrderChoice order{.free = pass().may_reorder() && outputs_.is_bound_to_whole_feeds(),
                          .fixed = {},
                          .binds_next_versions = outputs_.binds_next_versions()};
  RunMemory beside = begin(choice, output_bytes);
  const size_t capacity = capacity_beside(output_bytes + choice.later_bytes);
  if (order.binds_next_versions) choice.plan = binding.budgets().affordable();
  if (choice.plan && rounded(choice.plan->arena_bytes) > capacity) choice.plan = nullptr;
  if (choice.plan || rounded(binding.offsets().arena_bytes) <= capacity) return choice;
  if (!find_plan(choice, order, output_bytes, beside))
    choice.unmet = MemoryNeed{.arena_bytes = rounded(choice.plan->arena_bytes),
                              .output_bytes = output_bytes,
                              .certain_bytes = beside.certain_bytes,
                              .possible_bytes = beside.possible_bytes,
                              .unbounded = beside.unbounded ? describe(*beside.unbounded) : std::string()};
  return choice;
}

PlanChoice PlanChooser::for_rest(int32_t step, const IdVector<BufferId, bool>& is_away) const {
  PlanChoice choice;
  const Binding& binding = state_.binding();
  const size_t output_bytes = outputs_.bytes_to_allocate();
  OrderChoice order{.fixed = {}, .binds_next_versions = outputs_.binds_next_versions()};
  if (const auto& present = state_.budget()) order.fixed = present->order;
  RunMemory beside = begin(choice, output_bytes);
  // The binding's offsets are planned for the program's order, so another order cannot use them.
  if (order.fixed.empty() && rounded(binding.offsets().arena_bytes) <= capacity_beside(output_bytes + choice.later_bytes)) return choice;
  if (!find_plan(choice, order, output_bytes, beside))
    choice.plan = plan_rest(binding, capacity_beside(output_bytes + choice.later_bytes), order, step, is_away);
  return choice;
}

}  // namespace treadle::exec
