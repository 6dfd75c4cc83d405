// The cache of bindings, found by the values of the program's symbols, and the offset plans that bindings share.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/logging.h"
#include "exec/plan/plans.h"

namespace treadle::exec {
namespace {

constexpr size_t kMaxPlans = 8;

using Bindings = std::list<std::shared_ptr<Binding>>;

// True if only the cache refers to the binding, so that it may be rebound.
bool is_free(const std::shared_ptr<Binding>& binding) { return binding.use_count() == 1; }

// Returns the binding for these values and this version of the parameters; bindings.end() if there is none.
Bindings::iterator find_bound(Bindings& bindings, const Program& program, std::span<const int64_t> values,
                              const ParameterVersion* parameters) {
  const std::vector<int32_t>& symbols = program.extents().symbols;
  return std::ranges::find_if(bindings, [&](const std::shared_ptr<Binding>& binding) {
    return binding->parameters().get() == parameters && std::ranges::all_of(symbols, [&](int32_t symbol) {
             return binding->values()[static_cast<size_t>(symbol)] == values[static_cast<size_t>(symbol)];
           });
  });
}

// Moves bindings with an earlier version of the parameters to `outdated`. If one of them is free, it goes to `spare` instead, for reuse.
void drop_outdated(Bindings& bindings, const ParameterVersion* parameters, Bindings& spare, Bindings& outdated) {
  for (auto it = bindings.begin(); parameters && it != bindings.end();) {
    const auto binding = it++;
    if ((*binding)->parameters().get() == parameters) continue;
    Bindings& into = spare.empty() && is_free(*binding) ? spare : outdated;
    into.splice(into.begin(), bindings, binding);
  }
}

// Returns the free binding to reuse: the preferred one if it is free, otherwise the least recently used; bindings.end() if none is free.
Bindings::iterator choose_free(Bindings& bindings, const Binding* preferred) {
  auto found = bindings.end();
  for (auto it = bindings.begin(); it != bindings.end(); ++it) {
    if (!is_free(*it)) continue;
    found = it;
    if (it->get() == preferred) break;
  }
  return found;
}

// Logs that the program was bound to input shapes for which no binding had been kept.
void tell_binding(const Binding& binding) {
  const Program& program = binding.program();
  std::string extents;
  for (const SlotId slot : program.input_slots())
    if (program.slots()[slot].static_shape)
      extents += fmt::format("{}{}{}", extents.empty() ? "" : ", ", program.name(slot), to_string(binding.shape(slot)));
  const size_t bytes = binding.offsets().arena_bytes;
  log_event(
      LogLevel::verbose, LogCategory::program,
      {{"extents", extents}, {"nodes", static_cast<int64_t>(program.instructions().size())}, {"arena_bytes", static_cast<int64_t>(bytes)}},
      fmt::format("a program of {} nodes is bound to new extents, {}: {} bytes of arena", program.instructions().size(), extents, bytes));
}

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
  Bindings outdated;  // destroyed after the lock is released
  Bindings spare;     // the list node of the binding to reuse; it is spliced out of recent_ and back, so nothing is allocated
  bool first = false, returns = false;
  {
    std::lock_guard lock(mutex_);
    const Binding* held = previous && !previous->came_back() ? previous.get() : nullptr;
    previous.reset();
    if (auto found = find_bound(recent_, program, symbol_values, parameters.get()); found != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, found);
      recent_.front()->note_return();
      ++statistics_.hits;
      return recent_.front();
    }
    first = ++statistics_.misses == 1;
    returns = std::ranges::find(left_behind_, hash(symbol_values)) != left_behind_.end();
    drop_outdated(recent_, parameters.get(), spare, outdated);
    // Reuses an unused binding, because its memory is allocated already. If extents grow from run to run, earlier extents do not return, so
    // the binding of the previous run is taken; it is still in the CPU's caches. If extents return after their binding was taken, the least
    // recently used binding is taken instead.
    if (spare.empty() && recent_.size() >= kCapacity) {
      const Binding* preferred = returns ? nullptr : held;
      const auto found = choose_free(recent_, preferred);
      if (preferred && found != recent_.end() && found->get() == preferred) {
        left_behind_[next_left_behind_] = hash(preferred->values());
        next_left_behind_ = (next_left_behind_ + 1) % left_behind_.size();
      }
      if (found != recent_.end()) spare.splice(spare.begin(), recent_, found);
    }
  }
  if (spare.empty()) spare.push_back(std::make_shared<Binding>(owner_));
  spare.front()->came_back_ = returns;
  std::optional<LoadPhases::Scope> scope;
  if (first) scope.emplace(owner_.first_binding());
  const LoadPhases::Phase phase("first binding");
  // With recomputation, an arena for the exact extents may be smaller than one for rounded-up extents without recomputation. So, with
  // recomputation, extents are not rounded up.
  const bool bucketed = !first && program.planning().recompute_fraction == 0;
  spare.front()->bind(symbol_values, max_threads, bucketed, pool, parameters);
  if (log_enabled(LogLevel::verbose, LogCategory::program)) tell_binding(*spare.front());
  std::lock_guard lock(mutex_);
  recent_.splice(recent_.begin(), spare);
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
