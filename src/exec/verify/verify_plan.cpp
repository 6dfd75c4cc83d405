#include "exec/verify/verify_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "exec/plan/budget.h"
#include "exec/plan/lodging.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

using Act = DescribedPlan::Act;
using Home = DescribedPlan::Home;
using Place = DescribedPlan::Place;
using Step = DescribedPlan::Step;

}  // namespace

std::string describe_step(const DescribedPlan& plan, size_t step) {
  if (step >= plan.steps.size()) return "the end";
  const Step& found = plan.steps[step];
  if (found.act == Act::compute || found.act == Act::join || found.act == Act::split || found.act == Act::replay)
    return fmt::format("step {}, {}{} \"{}\"", step, found.act == Act::replay ? "again " : "", found.node->op_type, found.node->name);
  const PlaceId place = found.place;
  return fmt::format("step {}, {} of \"{}\"", step,
                     found.act == Act::copy    ? "copy"
                     : found.act == Act::spill ? "spill"
                                               : "load",
                     place == kNoPlace || plan.places[place].root == kNoSlot ? "scratch" : plan.values[plan.places[place].root].name);
}

std::string describe_bytes(const DescribedPlan& plan, PlaceId place, const Stretch& bytes) {
  const Place& own = plan.places[place];
  const std::string_view name = own.root == kNoSlot ? "scratch" : plan.values[own.root].name;
  std::string where;
  switch (own.home) {
    case Home::planned: where = fmt::format("the arena (\"{}\")", name); break;
    case Home::held: where = fmt::format("the held value \"{}\"", name); break;
    case Home::feed: where = fmt::format("the feed \"{}\"", name); break;
    case Home::constant: where = fmt::format("the constant \"{}\"", name); break;
    case Home::known: where = fmt::format("the known value \"{}\"", name); break;
  }
  if (bytes.rows > 1)
    return fmt::format("{} rows of {} bytes every {} from byte {} of {}", bytes.rows, bytes.row_bytes, bytes.step_bytes, bytes.begin,
                       where);
  return fmt::format("bytes [{}, {}) of {}", bytes.begin, bytes.end(), where);
}

std::vector<std::string> find_faults(const DescribedPlan& plan, size_t most) {
  std::vector<std::string> faults;
  const Report report = [&](std::string fault) {
    if (faults.size() < most) faults.push_back(std::move(fault));
  };
  const Touches touches = walk_plan(plan, report);
  if (plan.order != DescribedPlan::Order::one_by_one) check_order(plan, touches, report);
  return faults;
}

void verify_plan(const DescribedPlan& plan) {
  const std::vector<std::string> faults = find_faults(plan);
  if (faults.empty()) return;
  std::string text = fmt::format("the plan ({}) is wrong:", plan.schedule);
  for (const std::string& fault : faults) text += "\n  " + fault;
  throw Error(ErrorCode::internal, text);
}

void verify_binding(const Binding& binding) {
  verify_plan(describe_plan(binding));
  if (binding.program().parallel()) verify_plan(describe_parallel_plan(binding));
}

void prove(const Binding& binding) {
  if (!binding.program().planning().verify || binding.proof().is_there()) return;
  verify_binding(binding);
  binding.proof().note();
}

void prove(const Binding& binding, const BudgetedPlan& plan) {
  if (!binding.program().planning().verify || plan.proof.is_there()) return;
  verify_plan(describe_plan(binding, plan));
  plan.proof.note();
}

void prove(const Binding& binding, const BudgetedPlan* plan, const Lodgings& lodgings) {
  const bool any = std::any_of(lodgings.places.begin(), lodgings.places.end(), [](const Lodgings::Place& place) { return place.found(); });
  if (!binding.program().planning().verify || !any) return;
  DescribedPlan described = plan ? describe_plan(binding, *plan) : describe_plan(binding);
  described.memories = {lodgings.arena_bytes};
  const auto slots = binding.program().preallocated();
  for (size_t k = 0; k < slots.size(); ++k)
    if (lodgings.places[k].found()) lodge(described, slots[k], lodgings.places[k].offset);
  verify_plan(described);
}

}  // namespace treadle::exec
