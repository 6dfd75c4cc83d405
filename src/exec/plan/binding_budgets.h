// Plans that run a binding in less memory than its offsets need, by spilling or recomputing values.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <optional>

#include "core/base/fork_mutex.h"

namespace treadle::exec {

class Binding;
class Plans;
struct BudgetedPlan;
struct OrderChoice;

/// Makes each plan when it is first requested. Thread-safe, except for clear().
class BindingBudgets {
 public:
  /// @param binding, plans  must outlive this object
  BindingBudgets(const Binding& binding, Plans& plans);
  ~BindingBudgets();

  /// Returns a plan for an arena of at most this size or, if there is none, the smallest arena found. The last few plans are kept.
  std::shared_ptr<const BudgetedPlan> within(size_t capacity_bytes, const OrderChoice& order);
  /// Returns the plan with the smallest arena whose recomputation stays within PlanningRules::recompute_fraction of a run's time; with
  /// PlanningRules::recompute_pays, the plan with the best trade-off of memory and time. It keeps the program's order and spills nothing.
  /// Returns null if no such arena is smaller than own_arena_bytes(). Also returns null for extents seen for the first time, except for a
  /// program's first ones: planning takes longer than it saves in one run. If the last plan made here is large enough, and its arena is
  /// smaller than own_arena_bytes(), its moves and offsets are reused.
  std::shared_ptr<const BudgetedPlan> affordable();
  /// Returns the size in bytes of an arena planned for exactly the binding's extents. The plan in offsets() may be for larger extents.
  size_t own_arena_bytes();
  /// Called when the binding gets other extents. Drops all plans.
  void clear();

 private:
  static constexpr size_t kMostKept = 4;
  struct Budget;

  const Binding& binding_;
  Plans& plans_;
  ForkMutex mutex_;  // guards the members below
  std::optional<size_t> own_arena_bytes_;
  std::list<Budget> budgets_;  // the most recently used first
  std::optional<std::shared_ptr<const BudgetedPlan>> affordable_;
};

}  // namespace treadle::exec
