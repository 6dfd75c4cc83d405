// The cache of bindings by the values of their program's symbols, and the offset plans that they share.
#include <algorithm>
#include <utility>

#include "exec/plan/plans.h"

namespace treadle::exec {
namespace {

constexpr size_t kMaxPlans = 8;

}  // namespace

size_t BindingCache::hash(std::span<const int64_t> symbol_values) const {
  size_t result = 1;  // 0 marks an unused entry of left_behind_
  for (int32_t s : owner_.program().extents().symbols)
    result = (result ^ static_cast<uint64_t>(symbol_values[static_cast<size_t>(s)])) * 0x9e3779b97f4a7c15ULL + 1;
  return result;
}

std::shared_ptr<const Binding> BindingCache::get(std::span<const int64_t> symbol_values, int max_threads, ThreadPool* pool,
                                                 std::shared_ptr<const Binding> previous) {
  const Program& program = owner_.program();
  std::shared_ptr<const ParameterVersion> parameters;
  if (ParameterVersions* versions = owner_.parameters()) parameters = versions->current(pool, [this] { let_parameters_go(); });
  std::list<std::shared_ptr<Binding>> outdated;  // destroyed after the lock is released
  std::list<std::shared_ptr<Binding>> taken;  // the list node to bind anew, spliced out of recent_ and back, so that nothing is allocated
  bool first = false, returns = false;
  {
    std::lock_guard lock(mutex_);
    const Binding* held = previous && !previous->came_back() ? previous.get() : nullptr;
    previous.reset();
    for (auto it = recent_.begin(); it != recent_.end(); ++it) {
      bool same = std::all_of(program.extents().symbols.begin(), program.extents().symbols.end(),
                              [&](int32_t s) { return (*it)->values_[static_cast<size_t>(s)] == symbol_values[static_cast<size_t>(s)]; });
      if (!same || (*it)->parameters_ != parameters) continue;
      recent_.splice(recent_.begin(), recent_, it);
      recent_.front()->note_return();
      ++statistics_.hits;
      return recent_.front();
    }
    ++statistics_.misses;
    first = statistics_.misses == 1;
    // An unused binding is bound anew, as its memory is there already. If extents grow from run to run, they do not return: the binding of
    // the previous run, which is still in the CPU's caches, is taken. Extents that returned after their binding was taken get the least
    // recently used one instead.
    returns = std::find(left_behind_.begin(), left_behind_.end(), hash(symbol_values)) != left_behind_.end();
    auto is_free = [&](const std::shared_ptr<Binding>& binding) { return binding.use_count() == 1; };
    // Bindings with an earlier version of the parameters are useless. One unused binding of these is bound anew, the others are dropped.
    for (auto it = recent_.begin(); parameters && it != recent_.end();) {
      const auto binding = it++;
      if ((*binding)->parameters_ == parameters) continue;
      std::list<std::shared_ptr<Binding>>& into = taken.empty() && is_free(*binding) ? taken : outdated;
      into.splice(into.begin(), recent_, binding);
    }
    if (taken.empty() && recent_.size() >= kCapacity) {
      auto found = recent_.end();
      if (held && !returns) {
        found = std::find_if(recent_.begin(), recent_.end(), [&](const auto& b) { return b.get() == held && is_free(b); });
        if (found != recent_.end()) {
          left_behind_[next_left_behind_] = hash(held->values());
          next_left_behind_ = (next_left_behind_ + 1) % left_behind_.size();
        }
      }
      for (auto it = recent_.end(); found == recent_.end() && it != recent_.begin();)
        if (is_free(*--it)) found = it;
      if (found != recent_.end()) taken.splice(taken.begin(), recent_, found);
    }
  }
  if (taken.empty()) taken.push_back(std::make_shared<Binding>(owner_));
  taken.front()->came_back_ = returns;
  std::optional<LoadPhases::Scope> scope;
  if (first) scope.emplace(owner_.first_binding());
  const LoadPhases::Phase phase("first binding");
  // With recomputation, the present arena may be smaller than rounded-up extents would need without recomputation: no rounding then.
  const bool bucketed = !first && program.planning().recompute_fraction == 0;
  taken.front()->bind(symbol_values, max_threads, bucketed, pool, parameters);
  std::lock_guard lock(mutex_);
  recent_.splice(recent_.begin(), taken);
  return recent_.front();
}

void BindingCache::let_parameters_go() {
  std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Binding>& binding : recent_) {
    if (binding.use_count() > 1) continue;
    binding->bound_before_ = false;
    binding->parameters_.reset();
  }
}

void BindingCache::let_go(std::shared_ptr<const Binding> binding) {
  std::lock_guard lock(mutex_);
  binding.reset();
}

BindingCache::Statistics BindingCache::statistics() const {
  std::lock_guard lock(mutex_);
  return statistics_;
}

std::shared_ptr<const OffsetPlan> BindingCache::find_plan(std::span<const size_t> sizes) const {
  std::lock_guard lock(mutex_);
  for (const auto& plan : offset_plans_)
    if (std::equal(sizes.begin(), sizes.end(), plan->sizes.begin(), plan->sizes.end(), [](size_t a, size_t b) { return a <= b; }))
      return plan;
  return nullptr;
}

std::shared_ptr<const OffsetPlan> BindingCache::latest_plan() const {
  std::lock_guard lock(mutex_);
  return offset_plans_.empty() ? nullptr : offset_plans_.front();
}

std::shared_ptr<const BudgetedPlan> BindingCache::affordable_plan() const {
  std::lock_guard lock(mutex_);
  return affordable_plan_;
}

void BindingCache::set_affordable_plan(std::shared_ptr<const BudgetedPlan> plan) {
  std::lock_guard lock(mutex_);
  affordable_plan_ = std::move(plan);
}

std::shared_ptr<const Binding> BindingCache::latest() const {
  std::lock_guard lock(mutex_);
  return recent_.empty() ? nullptr : recent_.front();
}

void BindingCache::add_plan(std::shared_ptr<const OffsetPlan> plan) {
  std::lock_guard lock(mutex_);
  offset_plans_.push_front(std::move(plan));
  if (offset_plans_.size() > kMaxPlans) offset_plans_.pop_back();
  ++statistics_.plans;
}

}  // namespace treadle::exec
