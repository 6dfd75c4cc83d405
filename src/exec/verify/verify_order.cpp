// Verifies schedules with parallel steps. Derives which step happens before which from counts of unfinished predecessors, or from streams,
// events and waits of the host. Checks that any two steps that access the same bytes, at least one of them writing, are ordered.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "exec/verify/verify_plan.h"

namespace treadle::exec {
namespace {

using Home = DescribedPlan::Home;
using Before = std::function<bool(int32_t, int32_t)>;

// Derives the order of a parallel run: a step begins when its count of unfinished predecessors has been counted down to 0.
Reachability order_by_counts(const DescribedPlan& plan, const Report& report) {
  const DescribedPlan::Readiness& ready = plan.readiness;
  const size_t count = plan.steps.size();
  std::vector<std::vector<InstructionId>> before(count);
  for (size_t s = 0; s < count; ++s)
    for (uint32_t k = ready.first_successor[s]; k < ready.first_successor[s + 1]; ++k) {
      const size_t next = index_of(ready.successors[k]);
      if (next <= s)
        report(fmt::format("{} is to run before {}, which the program has before it", describe_step(plan, s), describe_step(plan, next)));
      else
        before[next].push_back(id_at<InstructionId>(s));
    }
  Reachability order(count);
  for (size_t s = 0; s < count; ++s) {
    const auto expected = static_cast<int32_t>(before[s].size());
    if (ready.counters[s] != expected)
      report(fmt::format("{} counts down from {}, it comes after {} steps", describe_step(plan, s), ready.counters[s], expected));
    // A step whose initial count is too small may begin at any time. So it is treated as ordered after no other step.
    order.add(id_at<InstructionId>(s), ready.counters[s] < expected ? std::vector<InstructionId>() : before[s]);
  }
  return order;
}

// Checks that held memory is freed after the last of the steps that access it, and not earlier or later.
void check_touches(const DescribedPlan& plan, const Report& report) {
  const DescribedPlan::Readiness& ready = plan.readiness;
  std::map<PlaceId, std::set<int32_t>> expected, counted;  // for each place: steps that access it; steps that count down its users
  std::map<PlaceId, int32_t> counter_of;
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const DescribedPlan::Step& step = plan.steps[s];
    for (size_t k = 0; k < static_cast<size_t>(step.num_inputs) + step.num_outputs; ++k) {
      const DescribedPlan::Operand& operand = plan.operands[step.first_operand + k];
      if (operand.value == kNoSlot) continue;
      const DescribedPlan::Place& place = plan.places[operand.place];
      if (place.home == Home::held && !plan.values[place.root].kept) expected[operand.place].insert(static_cast<int32_t>(s));
    }
    for (uint32_t t = ready.first_touch[s]; t < ready.first_touch[s + 1]; ++t) {
      const DescribedPlan::Readiness::Touch& touch = ready.touches[t];
      if (!counted[touch.place].insert(static_cast<int32_t>(s)).second)
        report(fmt::format("{} counts twice for letting go of \"{}\"", describe_step(plan, s),
                           plan.values[plan.places[touch.place].root].name));
      if (!counter_of.emplace(touch.place, touch.counter).second && counter_of[touch.place] != touch.counter)
        report(fmt::format("\"{}\" has two counters", plan.values[plan.places[touch.place].root].name));
    }
  }
  for (const auto& [place, steps] : expected) {
    const auto name = plan.values[plan.places[place].root].name;
    for (int32_t step : steps)
      if (!counted[place].contains(step))
        report(fmt::format("{} touches \"{}\", which may be let go of before it has ended", describe_step(plan, index(step)), name));
    const auto counter = counter_of.find(place);
    const int32_t from = counter == counter_of.end() ? 0 : ready.counters[index(counter->second)];
    if (from != static_cast<int32_t>(steps.size()))
      report(fmt::format("\"{}\" is let go of after {} steps, {} touch it", name, from, steps.size()));
  }
  for (const auto& [place, steps] : counted)
    if (!expected.contains(place) && !steps.empty())
      report(fmt::format("\"{}\" is let go of, which is not held or is handed out", plan.values[plan.places[place].root].name));
}

// Vector clocks. For each step: the position, on every stream, of the last step that has ended when this step begins, and its own position.
class Clocks {
 public:
  Clocks(const DescribedPlan& plan, const Report& report)
      : plan_(plan),
        streams_(static_cast<size_t>(plan.num_streams)),
        clocks_(plan.steps.size() * streams_, -1),
        positions_(plan.steps.size()) {
    std::vector<int32_t> now(streams_ * streams_, -1), host(streams_, -1);
    std::vector<int32_t> lengths(streams_, 0);
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const DescribedPlan::Issue& issue = plan.issues[s];
      const size_t stream = index(issue.stream);
      int32_t* own = now.data() + stream * streams_;
      auto join = [&](const int32_t* other, int32_t* into) {
        for (size_t k = 0; k < streams_; ++k) into[k] = std::max(into[k], other[k]);
      };
      join(host.data(), own);
      for (int32_t wait : issue.waits) {
        if (!issue.leads)
          report(fmt::format("{} waits for {}, but is issued with the step before it", describe_step(plan, s),
                             describe_step(plan, index(wait))));
        else if (wait < 0 || index(wait) >= s || !plan.issues[index(wait)].records)
          report(fmt::format("{} waits for {}, which records no event before", describe_step(plan, s),
                             wait < 0 ? std::string("a step that is not issued") : describe_step(plan, index(wait))));
        else
          join(clock(wait), own);
      }
      own[stream] = positions_[s] = lengths[stream]++;
      std::copy_n(own, streams_, clocks_.begin() + static_cast<ptrdiff_t>(s * streams_));
      if (issue.host_waits) join(own, host.data());
      if (issue.all_wait)
        for (size_t k = 0; k < streams_; ++k) join(now.data() + k * streams_, host.data());
    }
  }

  bool before(int32_t a, int32_t b) const { return a < b && clock(b)[index(plan_.issues[index(a)].stream)] >= positions_[index(a)]; }

 private:
  const int32_t* clock(int32_t step) const { return clocks_.data() + index(step) * streams_; }
  const DescribedPlan& plan_;
  const size_t streams_;
  std::vector<int32_t> clocks_, positions_;
};

// Checks that two steps that access the same bytes of a place are ordered if at least one of them writes.
void check_within(const DescribedPlan& plan, PlaceId place, const std::vector<BytesTouched>& touches, const Before& before,
                  const Report& report) {
  if (std::none_of(touches.begin(), touches.end(), [](const BytesTouched& touch) { return touch.writes; })) return;
  for (size_t b = 0; b < touches.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      const BytesTouched &first = touches[a], &second = touches[b];
      if (first.step == second.step || (!first.writes && !second.writes) || before(first.step, second.step) ||
          !overlap(first.bytes, second.bytes))
        continue;
      report(fmt::format("{} {} {}, and is not ordered after {}, which {} {}", describe_step(plan, index(second.step)),
                         second.writes ? "writes" : "reads", describe_bytes(plan, place, second.bytes),
                         describe_step(plan, index(first.step)), first.writes ? "writes" : "reads",
                         describe_bytes(plan, place, first.bytes)));
      return;
    }
  }
}

// Device memory is freed when that of its users that was issued last has ended. Checks that every other user holds a reference to the
// memory or is ordered before the last one.
void check_held(const DescribedPlan& plan, PlaceId place, const std::vector<BytesTouched>& touches, const Before& before,
                const Report& report) {
  if (plan.places[place].uses < 0 || touches.empty()) return;
  const int32_t last = touches.back().step;
  for (const BytesTouched& touch : touches)
    if (!touch.holds && touch.step != last && !before(touch.step, last))
      return report(fmt::format("{} does not hold \"{}\", which goes with {}, and is not ordered after it",
                                describe_step(plan, index(touch.step)), plan.values[plan.places[place].root].name,
                                describe_step(plan, index(last))));
}

// Checks: if two places share bytes of an arena, all steps that use one of them end before any step that uses the other begins.
void check_between(const DescribedPlan& plan, const Touches& touches, const Before& before, const Report& report) {
  std::vector<PlaceId> order;
  for (PlaceId p : plan.places.ids())
    if (plan.places[p].home == Home::planned && plan.places[p].size_bytes > 0 && !touches[p].empty()) order.push_back(p);
  auto begin_of = [&](PlaceId place) { return plan.places[place].offset; };
  auto end_of = [&](PlaceId place) { return begin_of(place) + plan.places[place].size_bytes; };
  std::sort(order.begin(), order.end(), [&](PlaceId a, PlaceId b) {
    return std::pair(plan.places[a].memory, begin_of(a)) < std::pair(plan.places[b].memory, begin_of(b));
  });
  // Returns the first pair of steps that violates "all steps of `a` come before all steps of `b`"; {-1, -1} if there is none.
  auto out_of_order = [&](PlaceId a, PlaceId b) -> std::pair<int32_t, int32_t> {
    for (const BytesTouched& first : touches[a])
      for (const BytesTouched& second : touches[b])
        if (!before(first.step, second.step)) return {first.step, second.step};
    return {-1, -1};
  };
  std::vector<PlaceId> open;
  for (PlaceId place : order) {
    std::erase_if(
        open, [&](PlaceId other) { return plan.places[other].memory != plan.places[place].memory || end_of(other) <= begin_of(place); });
    for (PlaceId other : open) {
      const bool is_first = touches[other].front().step < touches[place].front().step;
      const PlaceId a = is_first ? other : place, b = is_first ? place : other;
      const auto [first, second] = out_of_order(a, b);
      if (first < 0) continue;
      const size_t from = begin_of(place), to = std::min(end_of(place), end_of(other));
      report(fmt::format("{} uses {}, and is not ordered after {}, which uses {}", describe_step(plan, index(second)),
                         describe_bytes(plan, b, {.begin = from, .row_bytes = to - from}), describe_step(plan, index(first)),
                         describe_bytes(plan, a, {.begin = from, .row_bytes = to - from})));
    }
    open.push_back(place);
  }
}

}  // namespace

void check_order(const DescribedPlan& plan, const Touches& touches, const Report& report) {
  auto check = [&](const Before& before) {
    for (PlaceId p : touches.ids()) check_within(plan, p, touches[p], before, report);
    check_between(plan, touches, before, report);
  };
  if (plan.order == DescribedPlan::Order::by_readiness) {
    const Reachability order = order_by_counts(plan, report);
    check_touches(plan, report);
    check([&](int32_t a, int32_t b) { return order.before(InstructionId{a}, InstructionId{b}); });
  } else {
    const Clocks clocks(plan, report);
    const Before before = [&](int32_t a, int32_t b) { return clocks.before(a, b); };
    check(before);
    for (PlaceId p : touches.ids()) check_held(plan, p, touches[p], before, report);
  }
}

}  // namespace treadle::exec
