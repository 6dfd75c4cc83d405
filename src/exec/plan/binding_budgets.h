// Plans of a binding for less memory than its offsets take.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <optional>

#include "core/fork_mutex.h"

namespace treadle::exec {

class Binding;
class Plans;
struct BudgetedPlan;
struct OrderChoice;

/// Each plan is made when it is first asked for. Thread-safe, but for clear().
class BindingBudgets {
 public:
  /// @param binding, plans  outlive the object.
  BindingBudgets(const Binding& binding, Plans& plans);
  ~BindingBudgets();

  /// The plan for an arena of so many bytes, or for the least that can be reached; the last few are kept.
  std::shared_ptr<const BudgetedPlan> within(size_t capacity_bytes, const OrderChoice& order);
  /// The plan with the smallest arena whose recomputation takes no more of a run's time than PlanningRules::recompute_fraction, or the one
  /// that pays best of those, in the program's order; nothing is written to a file. Null where none is smaller than own_arena_bytes(), and
  /// for extents that are new, unless they are the program's first. Those that would need more by themselves than the last such plan take
  /// its moves and places, if these suffice.
  std::shared_ptr<const BudgetedPlan> affordable();
  /// Of an arena for just the binding's extents: its offsets may be of larger ones.
  size_t own_arena_bytes();
  /// The binding has other extents.
  void clear();

 private:
  static constexpr size_t kMostKept = 4;
  struct Budget;

  const Binding& binding_;
  Plans& plans_;
  ForkMutex mutex_;  // of what follows
  std::optional<size_t> own_arena_bytes_;
  std::list<Budget> budgets_;  // the last used first
  std::optional<std::shared_ptr<const BudgetedPlan>> affordable_;
};

}  // namespace treadle::exec
