#include "profile/analysis/analysis.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "profile/analysis/critical_path.h"
#include "profile/analysis/pool_states.h"
#include "profile/analysis/trace_rows.h"
#include "profile/model/trace.h"

namespace treadle::profile {
namespace {

struct Interval {
  uint64_t start, end;
};

// Returns the length of the union of the intervals. The intervals must be sorted by their starts.
uint64_t union_length(const std::vector<Interval>& intervals) {
  uint64_t length = 0, reached = 0;
  for (const Interval& interval : intervals) {
    const uint64_t from = std::max(interval.start, reached);
    if (interval.end > from) length += interval.end - from;
    reached = std::max(reached, interval.end);
  }
  return length;
}

class Analysis {
 public:
  Analysis(const Recording& recording, const RecordNames& names, Profile& profile, std::unordered_map<const Record*, int64_t>* waited_ns)
      : recording_(recording), names_(names), profile_(profile), waited_ns_(waited_ns) {}

  void run() {
    find_runs();
    assign_events();
    assign_kernel_events();
    std::erase_if(runs_, [](const Run& run) { return !run.of_profile; });
    for (ProfiledNode& node : profile_.nodes) {
      node.self_ns.assign(runs_.size(), 0);
      node.calls = 0;
      for (ProfiledKernelPhase& phase : node.kernel_phases) phase.self_ns.assign(runs_.size(), 0);
    }
    costs_.assign(profile_.nodes.size(), {});
    find_predecessors();
    for (size_t r = 0; r < runs_.size(); ++r) summarize(r), note_ready(r), sum_phases(r);
    add_pool(recording_, runs_, profile_);
    set_costs();
    keep_timelines();
    for (const auto& thread : recording_.threads) profile_.threads.push_back(title_of(thread));
    profile_.events_lost = recording_.dropped;
    profile_.events_unknown += static_cast<int64_t>(recording_.unknown);
  }

 private:
  double ns(uint64_t ticks) const { return static_cast<double>(ticks) * recording_.ns_per_tick; }

  void find_runs() {
    for (const auto& thread : recording_.threads)
      for (const Record& record : thread.records) {
        if (record.kind != RecordKind::run || record.name != names_.run) continue;
        const bool of_profile = record.start >= recording_.complete_from && record.end <= recording_.complete_until &&
                                is_within(names_.intervals, record.start) && !lacks_events(record);
        runs_.push_back({record.start, record.end, record.run, of_profile, static_cast<int32_t>(thread.index), {}, {}});
        longest_ = std::max(longest_, record.end - record.start);
      }
    std::sort(runs_.begin(), runs_.end(), [](const Run& a, const Run& b) { return a.start < b.start; });
  }

  bool lacks_events(const Record& run) const {
    return std::any_of(recording_.gaps.begin(), recording_.gaps.end(),
                       [&](const auto& gap) { return run.start <= gap.second && run.end >= gap.first; });
  }

  // Returns the run to which a record belongs; null if that run has not ended or was not recorded. Run numbers repeat after 65,536 runs, so
  // the run must also enclose the record's time.
  Run* run_of(const Record& record) {
    auto after =
        std::upper_bound(runs_.begin(), runs_.end(), record.start, [](uint64_t start, const Run& run) { return start < run.start; });
    for (auto it = after; it != runs_.begin();) {
      --it;
      if (record.start - it->start > longest_) break;
      if (it->number == record.run && record.end <= it->end) return &*it;
    }
    return nullptr;
  }

  void assign_events() {
    for (const auto& thread : recording_.threads)
      for (const Record& record : thread.records) {
        const bool wait = record.kind == RecordKind::wait, launch = record.kind == RecordKind::launch;
        if (record.kind != RecordKind::node && record.kind != RecordKind::copy && !wait && !launch) continue;
        const auto node = wait ? names_.node.end() : names_.node.find(record.name);
        Run* run = run_of(record);
        if (!run) continue;
        if (launch) {
          ++run->launches;
          continue;
        }
        if (!wait && node == names_.node.end()) {
          ++profile_.events_unknown;
          continue;
        }
        run->events.push_back(
            {record.start, record.end, wait ? -1 : node->second, static_cast<int32_t>(thread.index), record.arg0, record.arg1, &record});
      }
    for (Run& run : runs_) std::stable_sort(run.events.begin(), run.events.end(), is_outer_or_earlier<Event>);
  }

  void assign_kernel_events() {
    for (const auto& thread : recording_.threads)
      for (const Record& record : thread.records) {
        const bool is_phase = record.kind == RecordKind::phase;
        if (!is_phase && record.kind != RecordKind::chunk) continue;
        const auto node = names_.node.find(is_phase ? static_cast<uint32_t>(record.arg0) : record.name);
        Run* run = node == names_.node.end() ? nullptr : run_of(record);
        if (!run) continue;
        const int32_t phase = is_phase ? phase_of(node->second, recording_.names[record.name].text) : -1;
        run->kernel_events.push_back({record.start, record.end, node->second, phase, static_cast<int32_t>(thread.index)});
      }
    for (Run& run : runs_) std::stable_sort(run.kernel_events.begin(), run.kernel_events.end(), is_outer_or_earlier<KernelEvent>);
  }

  int32_t phase_of(int32_t node, const std::string& name) {
    std::vector<ProfiledKernelPhase>& phases = profile_.nodes[static_cast<size_t>(node)].kernel_phases;
    auto found = std::find_if(phases.begin(), phases.end(), [&](const ProfiledKernelPhase& phase) { return phase.name == name; });
    if (found == phases.end()) found = phases.insert(phases.end(), {.name = name});
    return static_cast<int32_t>(found - phases.begin());
  }

  // For each phase within a kernel, sums the phase's own time, which excludes phases nested in it.
  void sum_phases(size_t r) {
    std::vector<std::vector<const KernelEvent*>> open(recording_.threads.size());
    auto phase_at = [&](const KernelEvent& event) -> ProfiledKernelPhase& {
      return profile_.nodes[static_cast<size_t>(event.node)].kernel_phases[static_cast<size_t>(event.phase)];
    };
    for (const KernelEvent& event : runs_[r].kernel_events) {
      if (event.phase < 0) continue;
      auto& stack = open[static_cast<size_t>(event.thread)];
      while (!stack.empty() && stack.back()->end <= event.start) stack.pop_back();
      const double duration = ns(event.end - event.start);
      if (!stack.empty()) phase_at(*stack.back()).self_ns[r] -= duration;
      stack.push_back(&event);
      phase_at(event).self_ns[r] += duration;
      ++phase_at(event).calls;
    }
    profile_.runs[r].events += static_cast<int64_t>(runs_[r].kernel_events.size());
  }

  void summarize(size_t r) {
    const Run& run = runs_[r];
    std::vector<Interval> nodes, all;
    std::vector<std::vector<const Event*>> open(recording_.threads.size());  // for each thread, the nested events that are still open
    for (const Event& event : run.events) {
      all.push_back({event.start, event.end});
      auto& stack = open[static_cast<size_t>(event.thread)];
      while (!stack.empty() && stack.back()->end <= event.start) stack.pop_back();
      const double duration = ns(event.end - event.start);
      if (!stack.empty() && stack.back()->node >= 0) profile_.nodes[static_cast<size_t>(stack.back()->node)].self_ns[r] -= duration;
      stack.push_back(&event);
      if (event.node < 0) continue;
      nodes.push_back({event.start, event.end});
      ProfiledNode& node = profile_.nodes[static_cast<size_t>(event.node)];
      node.self_ns[r] += duration;
      ++node.calls;
      costs_[static_cast<size_t>(event.node)].first += static_cast<double>(event.flops);
      costs_[static_cast<size_t>(event.node)].second += static_cast<double>(event.bytes);
    }
    ProfiledRun result{.start_ns = recording_.to_ns(run.start), .duration_ns = ns(run.end - run.start)};
    result.events = static_cast<int64_t>(run.events.size()) + run.launches + 1;
    result.kernel_ns = ns(union_length(nodes));
    for (const ProfiledNode& node : profile_.nodes) result.node_ns += node.self_ns[r];
    const uint64_t covered = union_length(all);
    // Time in which one thread waits while another executes a node counts as execution time, not as waiting.
    result.wait_ns = ns(covered) - result.kernel_ns;
    if (all.empty()) {
      result.before_ns = result.duration_ns;
    } else {
      uint64_t last = 0;
      for (const Interval& interval : all) last = std::max(last, interval.end);
      result.before_ns = ns(all.front().start - run.start);
      result.after_ns = ns(run.end - last);
      result.between_ns = ns(last - all.front().start - covered);
    }
    profile_.runs.push_back(result);
  }

  void find_predecessors() {
    predecessors_ = predecessors_of(profile_);
    step_of_.assign(profile_.nodes.size(), -1);
    for (size_t step = 0; step < profile_.steps.size(); ++step) {
      const auto node = static_cast<size_t>(profile_.steps[step]);
      step_of_[node] = static_cast<int32_t>(step);
      profile_.nodes[node].ready_ns.assign(runs_.size(), -1);
      profile_.nodes[node].waited_ns.assign(runs_.size(), 0);
    }
  }

  // Computes when each node's operands were ready. If a value is computed again because of a memory limit, its first computation counts.
  void note_ready(size_t r) {
    constexpr double kLeastNs = 1000;
    Run& run = runs_[r];
    ends_.assign(profile_.steps.size(), 0);
    const auto step_of = [&](const Event& event) { return event.node < 0 ? -1 : step_of_[static_cast<size_t>(event.node)]; };
    for (const Event& event : run.events)
      if (const int32_t step = step_of(event); step >= 0 && ends_[static_cast<size_t>(step)] == 0)
        ends_[static_cast<size_t>(step)] = event.end;
    // The run's inputs, shapes and memory are ready when its first node begins.
    const uint64_t first = run.events.empty() ? run.start : run.events.front().start;
    for (Event& event : run.events) {
      const int32_t step = step_of(event);
      if (step < 0) continue;
      ProfiledNode& node = profile_.nodes[static_cast<size_t>(event.node)];
      if (node.ready_ns[r] >= 0) continue;
      uint64_t ready = first;
      for (size_t before : predecessors_[static_cast<size_t>(step)]) ready = std::max(ready, ends_[before]);
      ready = std::min(ready, event.start);
      event.waited = event.start - ready;
      node.ready_ns[r] = ns(ready - run.start);
      node.waited_ns[r] = ns(event.waited);
      profile_.runs[r].waited_ns += node.waited_ns[r];
      if (waited_ns_ && node.waited_ns[r] >= kLeastNs) waited_ns_->emplace(event.record, std::llround(node.waited_ns[r]));
    }
  }

  // Sets a node's operations and bytes to the average over its calls, if they are only known in runs because shapes are symbolic.
  void set_costs() {
    for (size_t i = 0; i < costs_.size(); ++i) {
      ProfiledNode& node = profile_.nodes[i];
      if (node.flops || node.calls == 0 || costs_[i].second <= 0) continue;
      node.flops = costs_[i].first / static_cast<double>(node.calls);
      node.bytes = costs_[i].second / static_cast<double>(node.calls);
    }
  }

  void keep_timelines() {
    if (runs_.empty()) return;
    std::vector<size_t> order(runs_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return profile_.runs[a].duration_ns < profile_.runs[b].duration_ns; });
    profile_.median_run = timeline(runs_[order[order.size() / 2]]);
    profile_.slowest_run = timeline(runs_[order.back()]);
  }

  std::vector<ProfiledEvent> timeline(const Run& run) const {
    std::vector<ProfiledEvent> events;
    events.reserve(run.events.size() + run.kernel_events.size());
    for (const Event& event : run.events)
      events.push_back({event.node, event.thread, ns(event.start - run.start), ns(event.end - event.start), -1, ns(event.waited)});
    for (const KernelEvent& event : run.kernel_events)
      events.push_back({event.node, event.thread, ns(event.start - run.start), ns(event.end - event.start), event.phase});
    const bool has_states = add_states(run, events);
    if (run.kernel_events.empty() && !has_states) return events;
    std::stable_sort(events.begin(), events.end(), [](const ProfiledEvent& a, const ProfiledEvent& b) {
      if (a.start_ns != b.start_ns) return a.start_ns < b.start_ns;
      return a.duration_ns != b.duration_ns ? a.duration_ns > b.duration_ns : a.phase < b.phase;
    });
    return events;
  }

  // Adds an event for each interval in which a thread of the thread pool waited, clipped to the run. @return whether there are any
  bool add_states(const Run& run, std::vector<ProfiledEvent>& events) const {
    const size_t before = events.size();
    for (const auto& thread : recording_.threads)
      for (const Record& record : thread.records) {
        if (record.kind != RecordKind::pool || record.start >= run.end || record.end <= run.start) continue;
        const PoolState state = state_of(recording_, record);
        if (state == PoolState::running) continue;
        const uint64_t start = std::max(record.start, run.start), end = std::min(record.end, run.end);
        events.push_back({-2 - static_cast<int32_t>(state), static_cast<int32_t>(thread.index), ns(start - run.start), ns(end - start)});
      }
    return events.size() > before;
  }

  const Recording& recording_;
  const RecordNames& names_;
  Profile& profile_;
  std::vector<Run> runs_;                         // sorted by start
  std::vector<std::pair<double, double>> costs_;  // for each node: operations and bytes, summed over its recorded calls
  uint64_t longest_ = 0;
  std::unordered_map<const Record*, int64_t>* const waited_ns_;
  std::vector<std::vector<size_t>> predecessors_;  // for each step, the steps whose results it reads
  std::vector<int32_t> step_of_;                   // step of each node; -1: the node is not in the main graph
  std::vector<uint64_t> ends_;                     // end of each step in the current run
};

}  // namespace

void analyze(const Recording& recording, const RecordNames& names, Profile& profile,
             std::unordered_map<const Record*, int64_t>* waited_ns) {
  Analysis(recording, names, profile, waited_ns).run();
}

double measure_ns_per_event() {
  constexpr int kEvents = 20'000, kRounds = 5;
  double best = std::numeric_limits<double>::infinity();
  Recorder recorder(uint64_t{kEvents} * (kRounds + 1));
  const uint32_t name = recorder.intern("event");
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    RecordWriter writer(&recorder, /*run=*/1);
    uint64_t boundary = read_ticks();
    for (int i = 0; i < kEvents; ++i) {
      const uint64_t end = read_ticks();
      writer.record(name, RecordKind::node, boundary, end);
      boundary = end;
    }
    const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    best = std::min(best, ns / kEvents);
  }
  return best;
}

}  // namespace treadle::profile
