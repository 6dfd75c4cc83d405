#include "profile/analysis/pool_states.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace treadle::profile {
namespace {

using States = std::array<double, kNumPoolStates>;
static_assert(ProfiledPoolThread::kStateNames.size() == kNumPoolStates);

struct Span {
  uint64_t start, end;
  PoolState state;
};
using Stretches = std::vector<std::pair<uint64_t, uint64_t>>;  // disjoint intervals in ascending order

Stretches union_of(Stretches stretches) {
  std::sort(stretches.begin(), stretches.end());
  Stretches joined;
  for (const auto& stretch : stretches)
    if (joined.empty() || stretch.first > joined.back().second)
      joined.push_back(stretch);
    else
      joined.back().second = std::max(joined.back().second, stretch.second);
  return joined;
}

uint64_t length_within(const Stretches& stretches, const Span& span) {
  uint64_t length = 0;
  auto it = std::upper_bound(stretches.begin(), stretches.end(), span.start, [](uint64_t t, const auto& s) { return t < s.second; });
  for (; it != stretches.end() && it->first < span.end; ++it) length += std::min(it->second, span.end) - std::max(it->first, span.start);
  return length;
}

class Pool {
 public:
  Pool(const Recording& recording, const std::vector<Run>& runs, Profile& profile)
      : recording_(recording), runs_(runs), profile_(profile) {}

  void add() {
    Stretches all;
    std::vector<Stretches> of_caller(recording_.threads.size());
    for (const Run& run : runs_) {
      all.emplace_back(run.start, run.end);
      of_caller[static_cast<size_t>(run.thread)].emplace_back(run.start, run.end);
    }
    all = union_of(std::move(all));
    const bool any = std::any_of(recording_.threads.begin(), recording_.threads.end(), [](const Recording::Thread& thread) {
      return std::any_of(thread.records.begin(), thread.records.end(), [](const Record& r) { return r.kind == RecordKind::pool; });
    });
    if (!any || all.empty()) return;
    for (const Recording::Thread& thread : recording_.threads) {
      const bool calls = !of_caller[thread.index].empty();
      add_thread(thread, calls, calls ? union_of(std::move(of_caller[thread.index])) : all);
    }
  }

 private:
  double ns(uint64_t ticks) const { return static_cast<double>(ticks) * recording_.ns_per_tick; }

  void add_thread(const Recording::Thread& thread, bool calls, const Stretches& stretches) {
    std::vector<Span> spans;
    bool of_pool = calls;
    for (const Record& record : thread.records)
      if (record.kind == RecordKind::pool)
        spans.push_back({record.start, record.end, state_of(recording_, record)}), of_pool = true;
      else if (record.kind == RecordKind::wait && calls)
        spans.push_back({record.start, record.end, PoolState::asleep});
    if (!of_pool) return;
    std::stable_sort(spans.begin(), spans.end(), is_outer_or_earlier<Span>);
    ProfiledPoolThread result{.thread = static_cast<int32_t>(thread.index), .calls = calls};
    // Time without a record counts as computing for a thread that calls runs, and as sleep for the pool's own threads.
    States& sums = result.state_ns;
    double& rest = sums[static_cast<size_t>(calls ? PoolState::running : PoolState::asleep)];
    for (const auto& [start, end] : stretches) rest += ns(end - start);
    std::vector<const Span*> open;
    for (const Span& span : spans) {
      const double length = ns(length_within(stretches, span));
      while (!open.empty() && open.back()->end <= span.start) open.pop_back();
      (open.empty() ? rest : sums[static_cast<size_t>(open.back()->state)]) -= length;
      sums[static_cast<size_t>(span.state)] += length;
      open.push_back(&span);
    }
    for (double& sum : sums) sum = std::max(sum, 0.0);  // rounding may make sums negative
    profile_.pool.push_back(result);
    add_barriers(spans, static_cast<int32_t>(thread.index));
  }

  // Adds the time of each wait at a barrier to the node that the waiting thread was executing, and to its run.
  void add_barriers(const std::vector<Span>& spans, int32_t thread) {
    struct Node {
      uint64_t start, end;
      size_t run;
      int32_t node;
    };
    std::vector<Node> nodes;
    for (size_t r = 0; r < runs_.size(); ++r)
      for (const Event& event : runs_[r].events)
        if (event.thread == thread && event.node >= 0) nodes.push_back({event.start, event.end, r, event.node});
    std::stable_sort(nodes.begin(), nodes.end(), is_outer_or_earlier<Node>);
    std::vector<const Node*> open;
    auto next = nodes.begin();
    for (const Span& span : spans) {
      if (span.state != PoolState::barrier) continue;
      for (; next != nodes.end() && next->start <= span.start; ++next) {
        while (!open.empty() && open.back()->end <= next->start) open.pop_back();
        open.push_back(&*next);
      }
      while (!open.empty() && open.back()->end <= span.start) open.pop_back();
      if (open.empty() || open.back()->end < span.end) continue;
      const double length = ns(span.end - span.start);
      profile_.runs[open.back()->run].barrier_ns += length;
      profile_.nodes[static_cast<size_t>(open.back()->node)].barrier_ns += length;
    }
  }

  const Recording& recording_;
  const std::vector<Run>& runs_;
  Profile& profile_;
};

}  // namespace

PoolState state_of(const Recording& recording, const Record& record) {
  const auto& names = ProfiledPoolThread::kStateNames;
  const std::string_view text = record.name < recording.names.size() ? std::string_view(recording.names[record.name].text) : "";
  const auto found = std::find(names.begin(), names.end(), text);
  return found == names.end() ? PoolState::running : static_cast<PoolState>(found - names.begin());
}

void add_pool(const Recording& recording, const std::vector<Run>& runs, Profile& profile) { Pool(recording, runs, profile).add(); }

}  // namespace treadle::profile
