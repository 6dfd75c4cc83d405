#include "memory/budget.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "core/base/checked.h"
#include "memory/planner.h"

namespace treadle::memory {
namespace {

enum class Choice : uint8_t { keep, spill, recompute };

/// The time between two successive uses of a buffer, if there is at least one step in between.
struct Gap {
  int32_t buffer;
  int32_t before, after;  // steps of the two uses
  Choice choice = Choice::keep;
  int32_t recipe = -1;
  double cost_ns = 0;
};

class Chooser {
 public:
  Chooser(size_t num_steps, std::span<const BudgetBuffer> buffers, std::span<const Recipe> recipes, const BudgetOptions& options)
      : buffers_(buffers),
        recipes_(recipes),
        options_(options),
        live_(num_steps, 0),
        mandatory_(num_steps, 0),
        uses_(buffers.size()),
        gaps_of_(buffers.size()) {
    for (size_t b = 0; b < buffers.size(); ++b) {
      sizes_.push_back(align_up(buffers[b].size_bytes, options.alignment));
      uses_[b] = buffers[b].uses;
      if (uses_[b].empty() || sizes_[b] == 0) continue;
      for (int32_t t = uses_[b].front().step; t <= uses_[b].back().step; ++t) live_[static_cast<size_t>(t)] += sizes_[b];
      if (buffers[b].stays) {
        for (int32_t t = uses_[b].front().step; t <= uses_[b].back().step; ++t) mandatory_[static_cast<size_t>(t)] += sizes_[b];
        continue;
      }
      for (size_t k = 0; k < uses_[b].size(); ++k) {
        mandatory_[static_cast<size_t>(uses_[b][k].step)] += sizes_[b];
        if (k > 0) add_gap(static_cast<int32_t>(b), uses_[b][k - 1].step, uses_[b][k].step);
      }
    }
    for (size_t r = 0; r < recipes.size(); ++r) recipe_at_[{recipes[r].buffer, recipes[r].step}] = static_cast<int32_t>(r);
  }

  size_t largest_mandatory() const { return mandatory_.empty() ? 0 : *std::max_element(mandatory_.begin(), mandatory_.end()); }

  // Spills or recomputes buffers until each step holds at most `target` bytes, or only what the step itself needs if that is more.
  void reduce_to(size_t target) {
    target_ = target;
    for (;;) {
      // Finds the step with the largest excess.
      int32_t worst = -1;
      size_t excess = 0;
      for (size_t t = 0; t < live_.size(); ++t)
        if (size_t above = over(t); above > excess) excess = above, worst = static_cast<int32_t>(t);
      if (worst < 0) break;
      sum_overload();
      if (!free_at(worst)) blocked_.push_back(worst);
    }
    take_back();
  }

  BudgetEstimate estimate() const {
    BudgetEstimate estimate;
    if (!live_.empty()) estimate.live_bytes = *std::max_element(live_.begin(), live_.end());
    for (const Gap& gap : gaps_)
      if (gap.choice != Choice::keep) estimate.cost_ns += gap.cost_ns;
    return estimate;
  }

  BudgetPlan place(size_t capacity) const {
    BudgetPlan plan;
    std::vector<std::vector<const Gap*>> open(buffers_.size());
    for (const Gap& gap : gaps_)
      if (gap.choice != Choice::keep) open[static_cast<size_t>(gap.buffer)].push_back(&gap);
    for (size_t b = 0; b < buffers_.size(); ++b) {
      if (uses_[b].empty()) continue;
      auto& breaks = open[b];
      std::sort(breaks.begin(), breaks.end(), [](const Gap* x, const Gap* y) { return x->before < y->before; });
      int32_t first = uses_[b].front().step, last_saved = -1;
      if (buffers_[b].begins_away) {
        last_saved = first - 1;
        plan.transfers.push_back({first, BudgetPlan::Move::load, static_cast<int32_t>(b), static_cast<int32_t>(plan.segments.size())});
      }
      for (const Gap* gap : breaks) {
        const auto leaving = static_cast<int32_t>(plan.segments.size());
        plan.segments.push_back({static_cast<int32_t>(b), first, gap->before, 0});
        plan.cost_ns += gap->cost_ns;
        if (gap->choice == Choice::spill) {
          // A buffer that was spilled before, and has not changed since, need not be written to the file again.
          if (last_saved < 0 || written_between(b, last_saved, gap->before)) {
            plan.transfers.push_back({gap->before + 1, BudgetPlan::Move::spill, static_cast<int32_t>(b), leaving});
            plan.spilled_bytes += buffers_[b].size_bytes;
          }
          last_saved = gap->before;
          plan.transfers.push_back({gap->after, BudgetPlan::Move::load, static_cast<int32_t>(b), leaving + 1});
        } else {
          plan.transfers.push_back({gap->after, BudgetPlan::Move::recompute, static_cast<int32_t>(b), leaving + 1, gap->recipe});
        }
        first = gap->after;
      }
      plan.segments.push_back({static_cast<int32_t>(b), first, uses_[b].back().step, 0});
    }
    for (BudgetPlan::Transfer& transfer : plan.transfers) {
      if (transfer.recipe < 0) continue;
      transfer.extra = static_cast<int32_t>(plan.segments.size());
      plan.segments.push_back({-1 - transfer.recipe, transfer.step, transfer.step, 0});
    }
    std::stable_sort(plan.transfers.begin(), plan.transfers.end(), [](const auto& x, const auto& y) {
      if (x.step != y.step) return x.step < y.step;
      return x.move != y.move ? x.move < y.move : x.recipe < y.recipe;
    });
    std::vector<Buffer> segments;
    for (const BudgetPlan::Segment& segment : plan.segments) {
      const size_t size = segment.buffer >= 0 ? buffers_[static_cast<size_t>(segment.buffer)].size_bytes
                                              : recipes_[static_cast<size_t>(-1 - segment.buffer)].extra_bytes;
      segments.push_back({size, segment.first, segment.last + 1});
    }
    // Limits the search by steps, not by time, so that the same budget always gives the same plan.
    constexpr int64_t kSearchSteps = 4'000;
    ArenaPlan arena = plan_arena_exactly(segments, {.alignment = options_.alignment,
                                                    .capacity_bytes = capacity,
                                                    .time_limit_seconds = 1e6,
                                                    .max_steps = segments.size() <= 1'000 && !options_.one_try ? kSearchSteps : 0});
    for (size_t s = 0; s < plan.segments.size(); ++s) plan.segments[s].offset = arena.offsets[s];
    plan.arena_bytes = arena.size_bytes;
    return plan;
  }

 private:
  void add_gap(int32_t buffer, int32_t before, int32_t after) {
    if (after - before < 2) return;
    gaps_of_[static_cast<size_t>(buffer)].push_back(gaps_.size());
    gaps_.push_back({buffer, before, after});
  }

  size_t over(size_t t) const {
    if (std::find(blocked_.begin(), blocked_.end(), static_cast<int32_t>(t)) != blocked_.end()) return 0;
    const size_t allowed = std::max(target_, mandatory_[t]);
    return live_[t] > allowed ? live_[t] - allowed : 0;
  }

  // Prefix sums of the bytes above the target. The difference of two entries is roughly how much freeing a buffer in a gap helps.
  void sum_overload() {
    overload_.assign(live_.size() + 1, 0);
    for (size_t t = 0; t < live_.size(); ++t) overload_[t + 1] = overload_[t] + static_cast<double>(over(t));
  }

  double spill_cost(const Gap& gap) const {
    const auto bytes = static_cast<double>(buffers_[static_cast<size_t>(gap.buffer)].size_bytes);
    bool saved = false;  // true: an earlier spill has written the buffer to the file, and it has not changed since
    for (size_t g : gaps_of_[static_cast<size_t>(gap.buffer)]) {
      const Gap& other = gaps_[g];
      saved |= other.choice == Choice::spill && other.before < gap.before &&
               !written_between(static_cast<size_t>(gap.buffer), other.before, gap.before);
    }
    return (saved ? 0 : options_.spill_ns + bytes * options_.spill_ns_per_byte) + options_.spill_ns + bytes * options_.load_ns_per_byte;
  }

  bool written_between(size_t buffer, int32_t after, int32_t until) const {
    return std::any_of(uses_[buffer].begin(), uses_[buffer].end(),
                       [&](const BudgetBuffer::Use& use) { return use.writes && use.step > after && use.step <= until; });
  }

  bool in_memory(int32_t buffer, int32_t step) const {
    const auto& uses = uses_[static_cast<size_t>(buffer)];
    if (uses.empty() || step < uses.front().step || step > uses.back().step) return false;
    const auto& gaps = gaps_of_[static_cast<size_t>(buffer)];
    return std::none_of(gaps.begin(), gaps.end(),
                        [&](size_t g) { return gaps_[g].choice != Choice::keep && gaps_[g].before < step && step < gaps_[g].after; });
  }

  // Returns a usable recipe for the end of the gap, or -1. Its operands must be in memory then, and its extra memory must fit.
  int32_t usable_recipe(const Gap& gap) const {
    auto found = recipe_at_.find({gap.buffer, gap.after});
    if (found == recipe_at_.end()) return -1;
    const Recipe& recipe = recipes_[static_cast<size_t>(found->second)];
    for (int32_t read : recipe.reads)
      if (!in_memory(read, gap.after)) return -1;
    const auto t = static_cast<size_t>(gap.after);
    size_t needed = mandatory_[t] + align_up(recipe.extra_bytes, options_.alignment);
    for (int32_t read : recipe.reads)
      if (!is_used_at(read, gap.after)) needed += sizes_[static_cast<size_t>(read)];
    return needed <= std::max(target_, mandatory_[t]) ? found->second : -1;
  }

  bool is_used_at(int32_t buffer, int32_t step) const {
    const auto& uses = uses_[static_cast<size_t>(buffer)];
    return std::any_of(uses.begin(), uses.end(), [&](const BudgetBuffer::Use& use) { return use.step == step; });
  }

  // Among the buffers that are not used at this step, chooses the one that frees memory at the lowest cost per byte. Returns false if there
  // is none.
  bool free_at(int32_t step) {
    int32_t best = -1, best_recipe = -1;
    double best_score = std::numeric_limits<double>::infinity(), best_cost = 0;
    for (size_t g = 0; g < gaps_.size(); ++g) {
      const Gap& gap = gaps_[g];
      if (gap.choice != Choice::keep || gap.before >= step || step >= gap.after) continue;
      const double relief = std::min(overload_[static_cast<size_t>(gap.after)] - overload_[static_cast<size_t>(gap.before) + 1],
                                     static_cast<double>(sizes_[static_cast<size_t>(gap.buffer)]) * (gap.after - gap.before - 1));
      if (relief <= 0) continue;
      double cost = options_.may_spill ? spill_cost(gap) : std::numeric_limits<double>::infinity();
      int32_t recipe = usable_recipe(gap);
      if (recipe >= 0 && recipes_[static_cast<size_t>(recipe)].cost_ns < cost)
        cost = recipes_[static_cast<size_t>(recipe)].cost_ns;
      else
        recipe = -1;
      if (cost / relief < best_score) best = static_cast<int32_t>(g), best_recipe = recipe, best_score = cost / relief, best_cost = cost;
    }
    if (best < 0) return false;
    const Gap chosen = gaps_[static_cast<size_t>(best)];
    gaps_[static_cast<size_t>(best)].choice = best_recipe >= 0 ? Choice::recompute : Choice::spill;
    gaps_[static_cast<size_t>(best)].recipe = best_recipe;
    gaps_[static_cast<size_t>(best)].cost_ns = best_cost;
    add_live(chosen, /*present=*/false);
    if (best_recipe >= 0) {
      add_extra(gaps_[static_cast<size_t>(best)], /*present=*/true);
      for (int32_t read : recipes_[static_cast<size_t>(best_recipe)].reads) use_at(read, chosen.after);
    }
    return true;
  }

  // Adds or removes the extra memory that the recipe of the gap needs while it recomputes the buffer.
  void add_extra(const Gap& gap, bool present) {
    const size_t extra = align_up(recipes_[static_cast<size_t>(gap.recipe)].extra_bytes, options_.alignment);
    for (std::vector<size_t>* bytes : {&live_, &mandatory_}) {
      size_t& own = (*bytes)[static_cast<size_t>(gap.after)];
      own = present ? own + extra : own - extra;
    }
  }

  // Adds a use of the buffer at the step, which divides the gap around this step in two.
  void use_at(int32_t buffer, int32_t step) {
    if (is_used_at(buffer, step)) return;
    auto& uses = uses_[static_cast<size_t>(buffer)];
    auto at = std::find_if(uses.begin(), uses.end(), [&](const BudgetBuffer::Use& use) { return use.step > step; });
    uses.insert(at, {step, false});
    if (buffers_[static_cast<size_t>(buffer)].stays) return;
    mandatory_[static_cast<size_t>(step)] += sizes_[static_cast<size_t>(buffer)];
    for (size_t g : gaps_of_[static_cast<size_t>(buffer)]) {
      Gap& gap = gaps_[g];
      if (gap.before >= step || step >= gap.after) continue;
      const int32_t after = gap.after;
      gap.after = step;
      if (step - gap.before < 2) gap.before = step;  // an empty gap, which is ignored from now on
      add_gap(buffer, step, after);
      return;
    }
  }

  void add_live(const Gap& gap, bool present) {
    for (int32_t t = gap.before + 1; t < gap.after; ++t) {
      size_t& live = live_[static_cast<size_t>(t)];
      const size_t size = sizes_[static_cast<size_t>(gap.buffer)];
      live = present ? live + size : live - size;
    }
  }

  // Undoes choices that later choices have made unnecessary, the most expensive ones first.
  void take_back() {
    std::vector<size_t> order;
    for (size_t g = 0; g < gaps_.size(); ++g)
      if (gaps_[g].choice != Choice::keep) order.push_back(g);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return gaps_[a].cost_ns > gaps_[b].cost_ns; });
    for (size_t g : order) {
      Gap& gap = gaps_[g];
      const size_t size = sizes_[static_cast<size_t>(gap.buffer)];
      bool fits = true;
      for (int32_t t = gap.before + 1; t < gap.after && fits; ++t)
        fits = live_[static_cast<size_t>(t)] + size <= std::max(target_, mandatory_[static_cast<size_t>(t)]);
      if (!fits) continue;
      if (gap.choice == Choice::recompute) add_extra(gap, /*present=*/false);
      gap.choice = Choice::keep;
      add_live(gap, /*present=*/true);
    }
  }

  std::span<const BudgetBuffer> buffers_;
  std::span<const Recipe> recipes_;
  const BudgetOptions options_;
  std::vector<size_t> live_, mandatory_;  // bytes at each step; mandatory_: bytes that the step needs
  std::vector<std::vector<BudgetBuffer::Use>> uses_;
  std::vector<size_t> sizes_;
  std::vector<Gap> gaps_;
  std::vector<std::vector<size_t>> gaps_of_;                  // indices into gaps_, per buffer
  std::map<std::pair<int32_t, int32_t>, int32_t> recipe_at_;  // index of the recipe, by buffer and step
  std::vector<double> overload_;
  std::vector<int32_t> blocked_;  // steps at which nothing more can be freed
  size_t target_ = 0;
};

}  // namespace

size_t largest_working_set(size_t num_steps, std::span<const BudgetBuffer> buffers, size_t alignment) {
  return Chooser(num_steps, buffers, {}, {.alignment = alignment}).largest_mandatory();
}

BudgetPlan plan_budget(size_t num_steps, std::span<const BudgetBuffer> buffers, std::span<const Recipe> recipes, size_t capacity_bytes,
                       const BudgetOptions& options) {
  // The arena may be too large although the bytes in use fit, because of holes between buffers. Then the plan is repeated with fewer bytes.
  std::optional<BudgetPlan> smallest;
  auto consider = [&](size_t target, std::span<const Recipe> allowed) {
    Chooser chooser(num_steps, buffers, allowed, options);
    chooser.reduce_to(target);
    BudgetPlan plan = chooser.place(capacity_bytes);
    if (!smallest || plan.arena_bytes < smallest->arena_bytes) smallest = std::move(plan);
    return smallest->arena_bytes <= capacity_bytes;
  };
  if (options.one_try) {
    consider(capacity_bytes, recipes);
    return *std::move(smallest);
  }
  for (double part : {1.0, 0.98, 0.95, 0.9, 0.82, 0.7, 0.5, 0.25})
    if (consider(static_cast<size_t>(static_cast<double>(capacity_bytes) * part), recipes)) return *std::move(smallest);
  // Recipes need extra memory, but spilling does not, so the last attempt only spills.
  consider(0, {});
  return *std::move(smallest);
}

BudgetEstimate estimate_budget(size_t num_steps, std::span<const BudgetBuffer> buffers, std::span<const Recipe> recipes,
                               size_t capacity_bytes, const BudgetOptions& options) {
  Chooser chooser(num_steps, buffers, recipes, options);
  chooser.reduce_to(capacity_bytes);
  return chooser.estimate();
}

}  // namespace treadle::memory
