#include "memory/order.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <tuple>

namespace treadle::memory {
namespace {

using Order = std::vector<int32_t>;
constexpr int32_t kNone = -1;

// The dependencies between steps: which steps write and read each value, and which steps must wait for which others.
class Steps {
 public:
  Steps(std::span<const Step> steps, std::span<const size_t> value_bytes) : steps_(steps), bytes_(value_bytes) {
    writer_.assign(bytes_.size(), kNone);
    num_readers_.assign(bytes_.size(), 0);
    before_.resize(steps.size());
    behind_.resize(steps.size());
    for (int32_t s = 0; s < count(); ++s)
      for (int32_t value : step(s).writes) writer_[static_cast<size_t>(value)] = s;
    for (const Step& one : steps) {
      std::vector<int32_t>& reads = reads_.emplace_back(one.reads);
      std::sort(reads.begin(), reads.end());
      reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
    }
    for (int32_t s = 0; s < count(); ++s) {
      std::vector<int32_t>& before = before_[static_cast<size_t>(s)];
      before = step(s).after;
      for (int32_t value : distinct_reads(s)) {
        ++num_readers_[static_cast<size_t>(value)];
        if (int32_t writer = writer_[static_cast<size_t>(value)]; writer != kNone && writer != s) before.push_back(writer);
      }
      std::sort(before.begin(), before.end());
      before.erase(std::unique(before.begin(), before.end()), before.end());
      for (int32_t other : before) behind_[static_cast<size_t>(other)].push_back(s);
    }
  }

  int32_t count() const { return static_cast<int32_t>(steps_.size()); }
  const Step& step(int32_t s) const { return steps_[static_cast<size_t>(s)]; }
  int64_t bytes(int32_t value) const { return static_cast<int64_t>(bytes_[static_cast<size_t>(value)]); }
  // Returns true for values that steps write. Bytes of values that existed before the first step do not depend on the order.
  bool counts(int32_t value) const { return writer_[static_cast<size_t>(value)] != kNone; }
  const std::vector<int32_t>& num_readers() const { return num_readers_; }
  const std::vector<int32_t>& before(int32_t s) const { return before_[static_cast<size_t>(s)]; }
  const std::vector<int32_t>& behind(int32_t s) const { return behind_[static_cast<size_t>(s)]; }
  const std::vector<int32_t>& distinct_reads(int32_t s) const { return reads_[static_cast<size_t>(s)]; }

 private:
  std::span<const Step> steps_;
  std::span<const size_t> bytes_;
  std::vector<int32_t> writer_, num_readers_;
  std::vector<std::vector<int32_t>> reads_, before_, behind_;
};

// Simulates the number of bytes alive while steps run one by one.
class Simulation {
 public:
  explicit Simulation(const Steps& steps) : steps_(steps), unread_(steps.num_readers()) {}

  struct Effect {
    int64_t during, after;  // bytes in use during and after the step
  };
  Effect effect_of(int32_t s) const {
    int64_t written = 0, reused = 0, released = 0;
    for (int32_t value : steps_.step(s).writes) {
      written += steps_.bytes(value);
      if (unread_[static_cast<size_t>(value)] == 0) released += steps_.bytes(value);
    }
    for (int32_t value : steps_.distinct_reads(s))
      if (steps_.counts(value) && unread_[static_cast<size_t>(value)] == 1) released += steps_.bytes(value);
    std::vector<int32_t> taken;
    for (auto [out, in] : steps_.step(s).reuses) {
      if (!steps_.counts(in) || unread_[static_cast<size_t>(in)] != 1) continue;
      if (std::find(taken.begin(), taken.end(), in) != taken.end() || std::find(taken.begin(), taken.end(), out) != taken.end()) continue;
      taken.insert(taken.end(), {in, out});
      reused += steps_.bytes(out);
    }
    return {live_ + written - reused, live_ + written - released};
  }

  void run(int32_t s) {
    Effect effect = effect_of(s);
    peak_ = std::max(peak_, effect.during);
    live_ = effect.after;
    for (int32_t value : steps_.distinct_reads(s)) --unread_[static_cast<size_t>(value)];
  }

  int64_t peak() const { return peak_; }

 private:
  const Steps& steps_;
  std::vector<int32_t> unread_;
  int64_t live_ = 0, peak_ = 0;
};

int64_t peak_of(const Steps& steps, std::span<const int32_t> order) {
  Simulation simulation(steps);
  for (int32_t s : order) simulation.run(s);
  return simulation.peak();
}

// Greedy order: always runs the ready step that leaves the fewest bytes alive. `by_peak`: prefers steps that do not raise the peak.
Order greedy(const Steps& steps, bool by_peak) {
  std::vector<size_t> waiting;
  std::vector<int32_t> ready;
  for (int32_t s = 0; s < steps.count(); ++s) {
    waiting.push_back(steps.before(s).size());
    if (waiting.back() == 0) ready.push_back(s);
  }
  Simulation simulation(steps);
  Order order;
  while (!ready.empty()) {
    auto score = [&](int32_t s) {
      Simulation::Effect effect = simulation.effect_of(s);
      return std::make_tuple(by_peak ? std::max(simulation.peak(), effect.during) : 0, effect.after, effect.during, s);
    };
    auto best = ready.begin();
    auto best_score = score(*best);
    for (auto it = ready.begin() + 1; it != ready.end(); ++it) {
      auto its_score = score(*it);
      if (its_score < best_score) best = it, best_score = its_score;
    }
    int32_t chosen = *best;
    ready.erase(best);
    simulation.run(chosen);
    order.push_back(chosen);
    for (int32_t next : steps.behind(chosen))
      if (--waiting[static_cast<size_t>(next)] == 0) ready.push_back(next);
  }
  return order;
}

// Builds the order greedily from the last step to the first. Removing a step frees its outputs, and its inputs become alive.
Order greedy_from_the_back(const Steps& steps) {
  std::vector<size_t> waiting;
  std::vector<int32_t> ready;
  for (int32_t s = 0; s < steps.count(); ++s) {
    waiting.push_back(steps.behind(s).size());
    if (waiting.back() == 0) ready.push_back(s);
  }
  std::vector<char> alive(steps.num_readers().size(), 0);
  Order order;
  while (!ready.empty()) {
    auto score = [&](int32_t s) {
      int64_t change = 0;
      for (int32_t value : steps.step(s).writes)
        if (alive[static_cast<size_t>(value)]) change -= steps.bytes(value);
      for (int32_t value : steps.distinct_reads(s))
        if (steps.counts(value) && !alive[static_cast<size_t>(value)]) change += steps.bytes(value);
      return std::make_pair(change, -s);
    };
    auto best = std::min_element(ready.begin(), ready.end(), [&](int32_t a, int32_t b) { return score(a) < score(b); });
    int32_t chosen = *best;
    ready.erase(best);
    order.push_back(chosen);
    for (int32_t value : steps.step(chosen).writes) alive[static_cast<size_t>(value)] = 0;
    for (int32_t value : steps.step(chosen).reads) alive[static_cast<size_t>(value)] = 1;
    for (int32_t other : steps.before(chosen))
      if (--waiting[static_cast<size_t>(other)] == 0) ready.push_back(other);
  }
  std::reverse(order.begin(), order.end());
  return order;
}

// Computes everything on which one result depends before it begins with the next result. Among a step's operands, the one with the highest
// peak is computed first.
Order depth_first(const Steps& steps) {
  std::vector<int64_t> written(static_cast<size_t>(steps.count())), need = written;
  for (int32_t s = 0; s < steps.count(); ++s)
    for (int32_t value : steps.step(s).writes) written[static_cast<size_t>(s)] += steps.bytes(value);
  auto by_need = [&](int32_t a, int32_t b) {
    int64_t gap_a = need[static_cast<size_t>(a)] - written[static_cast<size_t>(a)];
    int64_t gap_b = need[static_cast<size_t>(b)] - written[static_cast<size_t>(b)];
    return gap_a != gap_b ? gap_a > gap_b : a < b;
  };
  std::vector<std::vector<int32_t>> parts(static_cast<size_t>(steps.count()));
  for (int32_t s = 0; s < steps.count(); ++s) {  // the operands of a step precede it, so their needs are known
    std::vector<int32_t>& before = parts[static_cast<size_t>(s)] = steps.before(s);
    std::sort(before.begin(), before.end(), by_need);
    int64_t kept = 0, most = 0;
    for (int32_t other : before) {
      most = std::max(most, kept + need[static_cast<size_t>(other)]);
      kept += written[static_cast<size_t>(other)];
    }
    need[static_cast<size_t>(s)] = std::max(most, kept + written[static_cast<size_t>(s)]);
  }
  Order order;
  std::vector<char> entered(static_cast<size_t>(steps.count()), 0);
  std::vector<std::pair<int32_t, size_t>> stack;  // a step, and the number of its operands visited
  for (int32_t result = 0; result < steps.count(); ++result) {
    if (!steps.behind(result).empty() || entered[static_cast<size_t>(result)]) continue;
    entered[static_cast<size_t>(result)] = 1;
    stack.emplace_back(result, 0);
    while (!stack.empty()) {
      auto& [s, next] = stack.back();
      const std::vector<int32_t>& before = parts[static_cast<size_t>(s)];
      if (next == before.size()) {
        order.push_back(s);
        stack.pop_back();
        continue;
      }
      int32_t other = before[next++];
      if (entered[static_cast<size_t>(other)]) continue;
      entered[static_cast<size_t>(other)] = 1;
      stack.emplace_back(other, 0);
    }
  }
  return order;
}

}  // namespace

size_t peak_of_order(std::span<const Step> steps, std::span<const size_t> value_bytes, std::span<const int32_t> order) {
  return static_cast<size_t>(peak_of(Steps(steps, value_bytes), order));
}

std::vector<std::vector<int32_t>> orders_to_try(std::span<const Step> steps, std::span<const size_t> value_bytes) {
  const Steps all(steps, value_bytes);
  std::vector<Order> orders(1, Order(steps.size()));
  std::iota(orders[0].begin(), orders[0].end(), 0);
  for (Order& order : std::array{greedy(all, false), greedy(all, true), greedy_from_the_back(all), depth_first(all)})
    if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(std::move(order));
  return orders;
}

std::vector<int32_t> order_for_peak(std::span<const Step> steps, std::span<const size_t> value_bytes) {
  const Steps all(steps, value_bytes);
  Order best;
  int64_t lowest = std::numeric_limits<int64_t>::max();
  for (const Order& order : orders_to_try(steps, value_bytes)) {
    int64_t peak = peak_of(all, order);
    if (peak >= lowest) continue;
    lowest = peak;
    best = order;
  }
  return best;
}

}  // namespace treadle::memory
