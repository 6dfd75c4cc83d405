#include "exec/plan/binding_budgets.h"

#include <utility>

#include "exec/plan/budget.h"
#include "exec/plan/plans.h"

namespace treadle::exec {

struct BindingBudgets::Budget {
  size_t capacity_bytes;
  OrderChoice order;
  std::shared_ptr<const BudgetedPlan> plan;
};

BindingBudgets::BindingBudgets(const Binding& binding, Plans& plans) : binding_(binding), plans_(plans) {}
BindingBudgets::~BindingBudgets() = default;

std::shared_ptr<const BudgetedPlan> BindingBudgets::within(size_t capacity_bytes, const OrderChoice& order) {
  std::lock_guard lock(mutex_);
  for (auto budget = budgets_.begin(); budget != budgets_.end(); ++budget) {
    if (budget->capacity_bytes != capacity_bytes || budget->order != order) continue;
    budgets_.splice(budgets_.begin(), budgets_, budget);
    return budgets_.front().plan;
  }
  auto plan = plan_for_budget(binding_, capacity_bytes, order);
  budgets_.push_front({capacity_bytes, order, plan});
  if (budgets_.size() > kMostKept) budgets_.pop_back();
  return plan;
}

std::shared_ptr<const BudgetedPlan> BindingBudgets::affordable() {
  const PlanningRules& rules = binding_.program().planning();
  if (rules.recompute_fraction == 0) return nullptr;
  const size_t own_bytes = own_arena_bytes();
  std::lock_guard lock(mutex_);
  if (!affordable_) {
    // Smaller extents can use the last plan and its arena, whose pages the system has provided already; another plan might need new pages.
    if (const auto larger = plans_.bindings().affordable_plan(); larger && own_bytes > larger->arena_bytes) {
      if (auto plan = plan_as_for(*larger, binding_)) affordable_ = std::move(plan);
    }
    if (!affordable_) {
      // Planning takes longer than a plan saves in one run. So only the program's first extents, and extents that occur again, get a plan.
      if (!binding_.came_back() && plans_.bindings().statistics().misses > 1) return nullptr;
      affordable_ = plan_for_time(binding_, rules.recompute_fraction, rules.recompute_pays, own_bytes);
      if (*affordable_) plans_.bindings().set_affordable_plan(*affordable_);
    }
  }
  return *affordable_;
}

size_t BindingBudgets::own_arena_bytes() {
  std::lock_guard lock(mutex_);
  if (!own_arena_bytes_) {
    const OffsetPlan& offsets = binding_.offsets();
    OffsetPlan plan;
    plan.sizes.assign(binding_.buffer_sizes().begin(), binding_.buffer_sizes().end());
    const bool is_same = plan.sizes == offsets.sizes;
    if (!is_same) add_offsets(binding_.program(), plan);
    own_arena_bytes_ = is_same ? offsets.arena_bytes : plan.arena_bytes;
  }
  return *own_arena_bytes_;
}

void BindingBudgets::clear() {
  std::lock_guard lock(mutex_);
  budgets_.clear();
  affordable_.reset();
  own_arena_bytes_.reset();
}

}  // namespace treadle::exec
