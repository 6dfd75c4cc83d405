#include "exec/plan/lodging.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/checked.h"
#include "exec/plan/binding.h"
#include "exec/plan/budget.h"

namespace treadle::exec {
namespace {

/// A range of bytes in the arena and the last step that uses it.
struct Taken {
  size_t begin, end;
  int32_t until;
};

class Arena {
 public:
  Arena(const Binding& binding, const BudgetedPlan* plan)
      : binding_(binding),
        program_(binding.program()),
        plan_(plan),
        size_bytes_(align_up(plan ? plan->arena_bytes : binding.offsets().arena_bytes, Storage::kAlignment)) {
    const auto add = [&](size_t offset, size_t size_bytes, int32_t until) {
      if (size_bytes > 0) taken_.push_back({offset, align_up(offset + size_bytes, Storage::kAlignment), until});
    };
    for (BufferId b : program_.buffers().ids()) {
      if (!plan) {
        add(binding.offsets().offsets[b], binding.offsets().sizes[b], static_cast<int32_t>(program_.buffers()[b].last));
        continue;
      }
      for (const BudgetedPlan::Stay& stay : plan->stays[b]) add(stay.offset, binding.buffer_sizes()[b], stay.last);
    }
    if (plan)
      for (const BudgetedPlan::Extra& extra : plan->extras) add(extra.offset, extra.size_bytes, extra.step);
    std::sort(taken_.begin(), taken_.end(), [](const Taken& a, const Taken& b) { return a.begin < b.begin; });
  }

  Lodgings lodge_gradients() {
    struct Guest {
      size_t place;  // an index into the result of Program::preallocated()
      int32_t made_at;
      size_t size_bytes;
    };
    const auto slots = program_.preallocated();
    Lodgings found{std::vector<Lodgings::Place>(slots.size()), size_bytes_};
    if (plan_ && !plan_->order.empty()) return found;
    const IdVector<SlotId, int32_t> made_at = first_writes();
    std::vector<Guest> guests;
    for (size_t k = 0; k < slots.size(); ++k) {
      const Slot& slot = program_.slots()[slots[k]];
      if (!slot.is_gradient || !slot.is_output || slot.dtype == DType::string) continue;
      const size_t size = binding_.bytes_of(slots[k]);
      if (size > 0) guests.push_back({k, made_at[slots[k]], align_up(size, Storage::kAlignment)});
    }
    std::stable_sort(guests.begin(), guests.end(), [](const Guest& a, const Guest& b) { return a.size_bytes > b.size_bytes; });
    for (const Guest& guest : guests) found.places[guest.place] = {take(guest.made_at, guest.size_bytes), guest.made_at};
    found.arena_bytes = size_bytes_;
    return found;
  }

 private:
  // Returns, for each root slot (a slot with bytes of its own), the first step that writes it.
  IdVector<SlotId, int32_t> first_writes() const {
    IdVector<SlotId, int32_t> first(program_.slots().size(), INT32_MAX);
    const auto instructions = program_.instructions();
    for (InstructionId i : instructions.ids())
      for (SlotId slot : program_.operands(instructions[i]).subspan(instructions[i].num_inputs)) {
        if (slot == kNoSlot) continue;
        int32_t& own = first[program_.slots()[slot].root];
        own = std::min(own, static_cast<int32_t>(i));
      }
    return first;
  }

  // Takes the smallest gap that is large enough between ranges in use at this step or later. If there is none, may enlarge the arena, if
  // bytes at its end are free.
  size_t take(int32_t step, size_t size_bytes) {
    size_t best = Lodgings::Place::kNone, smallest = SIZE_MAX, covered = 0;
    const auto consider = [&](size_t end) {
      if (end < covered || end - covered < size_bytes || end - covered >= smallest) return;
      best = covered;
      smallest = end - covered;
    };
    for (const Taken& taken : taken_) {
      if (taken.until < step) continue;
      consider(taken.begin);
      covered = std::max(covered, taken.end);
    }
    consider(size_bytes_);
    if (best == Lodgings::Place::kNone && covered < size_bytes_) {
      best = covered;
      size_bytes_ = covered + size_bytes;
    }
    if (best == Lodgings::Place::kNone) return best;
    const Taken own{best, best + size_bytes, INT32_MAX};
    taken_.insert(std::upper_bound(taken_.begin(), taken_.end(), own, [](const Taken& a, const Taken& b) { return a.begin < b.begin; }),
                  own);
    return best;
  }

  const Binding& binding_;
  const Program& program_;
  const BudgetedPlan* const plan_;
  size_t size_bytes_;
  std::vector<Taken> taken_;  // sorted by their first byte
};

}  // namespace

Lodgings find_lodgings(const Binding& binding, const BudgetedPlan* plan) { return Arena(binding, plan).lodge_gradients(); }

}  // namespace treadle::exec
