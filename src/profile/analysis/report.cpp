// Makes the report of a profile. Tables, pages and comparisons are written from this report.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>

#include "core/base/cpu_info.h"
#include "profile/analysis/critical_path.h"
#include "profile/analysis/layers.h"
#include "profile/analysis/memory_timeline.h"
#include "profile/analysis/report_parts.h"
#include "profile/analysis/statistics.h"
#include "treadle/profile_report.h"

namespace treadle {

double MachinePeaks::bandwidth(double bytes) const {
  if (bytes_per_second.empty()) return 0;
  auto above = std::find_if(bytes_per_second.begin(), bytes_per_second.end(), [&](const auto& point) { return point.first >= bytes; });
  if (above == bytes_per_second.begin()) return above->second;
  if (above == bytes_per_second.end()) return bytes_per_second.back().second;
  const auto& below = *(above - 1);
  const double part = std::log(bytes / below.first) / std::log(above->first / below.first);
  return below.second + part * (above->second - below.second);
}

double MachinePeaks::bound_ns(double flops, double bytes) const {
  if (flops_per_second <= 0 || bytes_per_second.empty()) return 0;
  return 1e9 * std::max(flops / flops_per_second, bytes > 0 ? bytes / bandwidth(bytes) : 0);
}

namespace profile {
namespace {

// If a node seems to exceed the peak bandwidth by more than this factor, its data cannot have been moved: it stayed where it was.
constexpr double kPlausible = 1.3;
constexpr size_t kMaxTimelineEvents = 1'000'000;

std::vector<ProfiledOperand> named(const std::vector<ProfiledOperand>& operands) {
  std::vector<ProfiledOperand> list;
  for (const ProfiledOperand& operand : operands)
    if (!operand.name.empty()) list.push_back(operand);
  return list;
}

class ReportBuilder {
 public:
  ReportBuilder(const Profile& profile, const ProfileContext& context) : profile_(profile), context_(context), peaks_(context.peaks) {
    has_calls_ = context.call_ns.size() == profile.runs.size();
    for (size_t r = 0; r < profile.runs.size(); ++r) walls_.push_back(has_calls_ ? context.call_ns[r] : profile.runs[r].duration_ns);
    typical_ = middle_half(walls_);
    wall_ns_ = typical_mean([&](size_t r) { return walls_[r]; });
  }

  ProfileReport build() {
    ProfileReport report;
    raise_peak();
    add_headline(report);
    judge_nodes();
    find_critical_path();
    report.where = where();
    if (path_.ms > 0) report.critical_path = {rounded(path_.ms), rounded(path_.all_ms), path_.nodes};
    if (const double ns = typical_mean([&](size_t r) { return profile_.runs[r].waited_ns; }); ns > 0) report.waited_ms = milliseconds(ns);
    report.nodes = nodes();
    report.operators = operators();
    report.layers = layers_of(report.nodes);
    report.phases = phases();
    report.pool = pool_of(profile_);
    report.load = load_of(profile_);
    report.ranges = ranges_of(profile_);
    if (!profile_.marks.empty()) report.marks = marks_of(profile_);
    report.memory = memory();
    if (context_.remedies_tried) {
      report.remedies = context_.remedies;
      for (ProfileRemedy& remedy : *report.remedies) remedy.effect = rounded(remedy.effect, 1e4);
    }
    report.timeline = {profile_.threads, timeline(profile_.median_run), timeline(profile_.slowest_run)};
    if (!profile_.spans.empty()) report.timeline->ranges = spans_of(profile_);
    return report;
  }

 private:
  enum class Kind : uint8_t { compute, other_numbers, memory, moves, control_flow, unknown };
  static constexpr size_t kNumKinds = 6;

  template <typename F>
  double typical_mean(const F& value) const {
    if (typical_.empty()) return 0;
    double sum = 0;
    for (size_t r : typical_) sum += value(r);
    return sum / static_cast<double>(typical_.size());
  }

  void add_headline(ProfileReport& report) const {
    report.model = context_.model;
    report.command = context_.command;
    report.assumed_extents = context_.assumed_extents;
    const CpuInfo& cpu = cpu_info();
    const bool has_peaks = peaks_.flops_per_second > 0;
    report.environment = {
        .cpu = profile_.cpu.empty() ? cpu.model_name : profile_.cpu,
        .usable_cpus = cpu.usable_cpus,
        .treadle = TREADLE_VERSION,
        .unix_time = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count(),
        .threads = {},
        .options = context_.options};
    if (peaks_.threads > 0 && has_peaks) report.environment.threads = peaks_.threads;
    report.runs = {.recorded = static_cast<int64_t>(profile_.runs.size()), .warmup = context_.warmup_runs};
    if (!walls_.empty()) report.runs.ms = times_of(walls_);
    if (!context_.plain_ns.empty()) report.runs.plain_ms = times_of(context_.plain_ns);
    if (context_.load_ms > 0) report.runs.load_ms = rounded(context_.load_ms);
    if (context_.first_run_ms > 0) report.runs.first_run_ms = rounded(context_.first_run_ms);
    report.profiler = cost();
    if (!profile_.clock.empty()) report.clock = clock_of(profile_);
    if (has_peaks)
      report.peaks = {.threads = peaks_.threads,
                      .gflops = gflops_of(peaks_),
                      .bandwidth = bandwidth_of(peaks_),
                      .spread = rounded(peaks_.spread, 1e4),
                      .busy = peaks_.busy,
                      .kept = peaks_.kept,
                      .raised_by = peaks_.raised_by};
    for (const auto& [device, peaks] : context_.device_peaks)
      report.device_peaks.push_back({.device = device, .gflops = gflops_of(peaks), .bandwidth = bandwidth_of(peaks)});
  }

  static double gflops_of(const MachinePeaks& peaks) { return rounded(peaks.flops_per_second / 1e9, 100); }
  static std::vector<ProfileReport::Peaks::Bandwidth> bandwidth_of(const MachinePeaks& peaks) {
    std::vector<ProfileReport::Peaks::Bandwidth> rates;
    for (const auto& [bytes, rate] : peaks.bytes_per_second) rates.push_back({bytes, rounded(rate / 1e9, 100)});
    return rates;
  }

  // Returns the peak rates of the machine or device that computed the node; without rates if they were not measured.
  const MachinePeaks& peaks_of(const ProfiledNode& node) const {
    static const MachinePeaks kUnknown;
    if (node.device.empty()) return peaks_;
    const auto found = context_.device_peaks.find(node.device);
    return found == context_.device_peaks.end() ? kUnknown : found->second;
  }

  ProfileReport::Cost cost() const {
    ProfileReport::Cost cost{.ns_per_event = rounded(profile_.ns_per_event, 10),
                             .events_per_run = typical_mean([&](size_t r) { return static_cast<double>(profile_.runs[r].events); }),
                             .events_lost = profile_.events_lost,
                             .events_unknown = profile_.events_unknown,
                             .slowdown = {}};
    if (context_.plain_ns.empty() || walls_.empty()) return cost;
    // States an overhead of recording only if the confidence intervals of the two medians do not overlap; a smaller difference is noise.
    const Summary plain = summarize(context_.plain_ns), recorded = summarize(walls_);
    std::optional<double>& slowdown = cost.slowdown.emplace();
    if (plain.interval && recorded.interval &&
        (plain.interval->second < recorded.interval->first || recorded.interval->second < plain.interval->first))
      slowdown = rounded(recorded.median / plain.median - 1, 1e4);
    return cost;
  }

  // The multiply-adds are measured for a moment, in which the processors may be slower than in the runs. A node that is faster than they
  // were is a better measurement of the machine, unless its kernel needs fewer operations than the operator is counted with.
  void raise_peak() {
    constexpr double kLeastNs = 20'000;  // the times of shorter nodes are not exact enough
    if (peaks_.flops_per_second <= 0 || !context_.peaks_hold || profile_.runs.empty()) return;
    for (const ProfiledNode& node : profile_.nodes) {
      if (!node.flops || !node.device.empty() || node.self_ns.empty() || !computes_in_float32(node) || saves_operations(node)) continue;
      const double calls = static_cast<double>(node.calls) / static_cast<double>(profile_.runs.size());
      const double median = summarize(node.self_ns).median;
      if (median < kLeastNs) continue;
      const double rate = 1e9 * *node.flops * calls / median;
      if (rate > peaks_.flops_per_second) peaks_.flops_per_second = rate, peaks_.raised_by = node.name;
    }
  }

  // True for Winograd's convolutions, which multiply fewer times than the operator is counted with.
  static bool saves_operations(const PlannedNode& node) { return node.forms.find("F(") != std::string::npos; }

  // Determines for each node the resource that limits it, and the least time that the machine or device could take for it.
  void judge_nodes() {
    for (const ProfiledNode& node : profile_.nodes) {
      const bool costed = node.flops && node.bytes;
      bounds_ns_.push_back(costed ? peaks_of(node).bound_ns(*node.flops, *node.bytes) : 0);
      kinds_.push_back(kind_of(node, bounds_ns_.back()));
    }
  }

  Kind kind_of(const ProfiledNode& node, double bound_ns) const {
    if (node.kernel.empty() && !node.between_devices) return Kind::control_flow;
    if (node.moves) return Kind::moves;
    if (bound_ns == 0) return Kind::unknown;
    const MachinePeaks& peaks = peaks_of(node);
    if (*node.flops / peaks.flops_per_second < *node.bytes / peaks.bandwidth(*node.bytes)) return Kind::memory;
    const bool peaks_hold = context_.peaks_hold || !node.device.empty();  // devices always compute in float32
    return peaks_hold && computes_in_float32(node) ? Kind::compute : Kind::other_numbers;
  }

  double node_mean_ns(size_t i) const {
    return profile_.nodes[i].self_ns.empty() ? 0 : typical_mean([&](size_t r) { return profile_.nodes[i].self_ns[r]; });
  }

  double all_self_ns(size_t i) const { return std::accumulate(profile_.nodes[i].self_ns.begin(), profile_.nodes[i].self_ns.end(), 0.0); }

  // Returns the parts into which the time of a typical run divides. Their sum is the whole run.
  std::vector<ProfileReport::Part> where() const {
    std::array<double, kNumKinds> kinds{};
    double nodes_ns = 0, barriers_ns = 0;
    for (size_t i = 0; i < profile_.nodes.size(); ++i) {
      const double ns = node_mean_ns(i);
      const double barrier_ns = all_self_ns(i) > 0 ? ns * profile_.nodes[i].barrier_ns / all_self_ns(i) : 0;
      kinds[static_cast<size_t>(kinds_[i])] += ns - barrier_ns;
      barriers_ns += barrier_ns;
      nodes_ns += ns;
    }
    auto mean_of = [&](double ProfiledRun::*part) { return typical_mean([&](size_t r) { return profile_.runs[r].*part; }); };
    const double kernel_ns = mean_of(&ProfiledRun::kernel_ns);
    // Subtracts the cost of recording events from the time between nodes, and what exceeds that time from the time of nodes.
    const double events = typical_mean([&](size_t r) { return static_cast<double>(profile_.runs[r].events); }) - 1;
    double between_ns = mean_of(&ProfiledRun::between_ns);
    const double recording_ns = std::clamp(events * profile_.ns_per_event, 0.0, between_ns + kernel_ns / 2);
    const double within_ns = std::max(0.0, recording_ns - between_ns);
    between_ns -= recording_ns - within_ns;
    // If nodes run concurrently, scales their times so that the sum is the time in which at least one node ran.
    const double scale = nodes_ns > 0 ? (kernel_ns - within_ns) / nodes_ns : 0;
    auto of = [&](Kind kind) { return kinds[static_cast<size_t>(kind)] * scale; };
    std::vector<ProfileReport::Part> list;
    auto add = [&](const char* id, const char* title, double ns) {
      if (ns > 0) list.push_back({id, title, milliseconds(ns), rounded(ns / wall_ns_)});
    };
    add("compute", "nodes bound by computing", of(Kind::compute));
    add("other_numbers", "nodes that compute in other numbers than float32", of(Kind::other_numbers));
    add("memory", "nodes bound by memory", of(Kind::memory));
    add("moves", "nodes that only move data", of(Kind::moves));
    add("unknown", peaks_.flops_per_second > 0 ? "nodes of unknown cost" : "nodes", of(Kind::unknown));
    add("control_flow", "loops and branches, around their nodes", of(Kind::control_flow));
    add("barrier", "waiting for helpers, at the ends of nodes' loops", barriers_ns * scale);
    add("dispatch", "between nodes", between_ns);
    add("profiler", "recording", recording_ns);
    add("wait", "waiting for other jobs", mean_of(&ProfiledRun::wait_ns));
    add("before", "before the first node", mean_of(&ProfiledRun::before_ns));
    add("after", "after the last node", mean_of(&ProfiledRun::after_ns));
    if (has_calls_) add("outside", "around the run: feeds and outputs", wall_ns_ - mean_of(&ProfiledRun::duration_ns));
    return list;
  }

  // Finds the critical path. For it, the time of a node with bodies (such as If) includes the nodes in the bodies.
  void find_critical_path() {
    std::vector<double> node_ms(profile_.nodes.size(), 0);
    for (size_t i = profile_.nodes.size(); i-- > 0;) {  // in reverse, since nodes in bodies follow their node
      node_ms[i] += node_mean_ns(i) / 1e6;
      if (profile_.nodes[i].parent >= 0) node_ms[static_cast<size_t>(profile_.nodes[i].parent)] += node_ms[i];
    }
    path_ = critical_path(profile_, node_ms);
  }

  std::vector<NodeReport> nodes() const {
    std::vector<NodeReport> list;
    for (size_t i = 0; i < profile_.nodes.size(); ++i) {
      const ProfiledNode& node = profile_.nodes[i];
      NodeReport& report = list.emplace_back(NodeReport{node});
      if (node.sources.size() == 1 && node.sources[0] == node.name) report.sources.clear();
      report.inputs = named(node.inputs);
      report.outputs = named(node.outputs);
      if (!profile_.runs.empty()) add_times(report, i);
    }
    return list;
  }

  void add_times(NodeReport& report, size_t i) const {
    const ProfiledNode& node = profile_.nodes[i];
    const double calls = static_cast<double>(node.calls) / static_cast<double>(profile_.runs.size());
    report.calls = rounded(calls, 1000);
    report.ms = times_of(node.self_ns);
    const double mean = node_mean_ns(i);
    if (path_.ms > 0 && path_.slack_ms[i] >= 0) report.slack_ms = rounded(path_.slack_ms[i]);
    if (!node.ready_ns.empty() && std::all_of(typical_.begin(), typical_.end(), [&](size_t r) { return node.ready_ns[r] >= 0; })) {
      report.ready_ms = milliseconds(typical_mean([&](size_t r) { return node.ready_ns[r]; }));
      report.waited_ms = milliseconds(typical_mean([&](size_t r) { return node.waited_ns[r]; }));
    }
    report.mean_ms = milliseconds(mean);
    if (node.barrier_ns > 0) report.barrier_ms = milliseconds(node.barrier_ns / static_cast<double>(profile_.runs.size()));
    report.share = share_of(mean);
    report.kernel_phases = kernel_phases(node);
    const double median = summarize(node.self_ns).median;
    if (median <= 0 || calls <= 0) return;
    // If moving the node's bytes would exceed the machine's bandwidth, they did not move, so no rate is given.
    const double bound = bounds_ns_[i] * calls;
    const bool computes = kinds_[i] == Kind::compute || kinds_[i] == Kind::other_numbers;
    const bool in_place = !computes && bound > kPlausible * median;
    if (node.flops && *node.flops > 0) report.gflops = rounded(*node.flops * calls / median, 100);
    if (node.bytes && *node.bytes > 0 && !in_place) report.gb_per_s = rounded(*node.bytes * calls / median, 100);
    if (bound <= 0 || in_place) return;
    report.bound = computes ? "compute" : "memory";
    if (kinds_[i] == Kind::other_numbers) return;
    report.bound_ms = milliseconds(bound);
    report.of_peak = rounded(bound / median, 1e4);
    if (bound > median)
      report.above_peak = !computes                ? "its bytes are partly in caches, or it reads more than it writes"
                          : saves_operations(node) ? "Winograd needs fewer operations than the operator is counted with"
                                                   : "the measured peak is too low";
  }

  std::vector<KernelPhaseReport> kernel_phases(const ProfiledNode& node) const {
    double all_ns = 0;
    std::vector<double> means;
    for (const ProfiledKernelPhase& phase : node.kernel_phases) {
      means.push_back(typical_mean([&](size_t r) { return phase.self_ns[r]; }));
      all_ns += means.back();
    }
    std::vector<KernelPhaseReport> list;
    for (size_t i = 0; i < means.size(); ++i) {
      const ProfiledKernelPhase& phase = node.kernel_phases[i];
      list.push_back({.name = phase.name,
                      .calls = rounded(static_cast<double>(phase.calls) / static_cast<double>(profile_.runs.size()), 1000),
                      .ms = times_of(phase.self_ns),
                      .mean_ms = milliseconds(means[i]),
                      .share = rounded(all_ns > 0 ? means[i] / all_ns : 0)});
    }
    return list;
  }

  double share_of(double ns) const { return rounded(wall_ns_ > 0 ? ns / wall_ns_ : 0); }

  std::vector<ProfileReport::Operator> operators() const {
    struct Sum {
      int64_t nodes = 0;
      double ns = 0, flops = 0;
      bool known = true;
    };
    std::map<std::string, Sum> sums;
    for (size_t i = 0; i < profile_.nodes.size(); ++i) {
      const ProfiledNode& node = profile_.nodes[i];
      Sum& sum = sums[node.op_type];
      ++sum.nodes;
      sum.ns += node_mean_ns(i);
      const double calls = profile_.runs.empty() ? 1 : static_cast<double>(node.calls) / static_cast<double>(profile_.runs.size());
      sum.flops += node.flops.value_or(0) * calls;
      sum.known = sum.known && node.flops.has_value();
    }
    std::vector<std::pair<std::string, Sum>> sorted(sums.begin(), sums.end());
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
    std::vector<ProfileReport::Operator> list;
    for (const auto& [op, sum] : sorted) {
      ProfileReport::Operator& made =
          list.emplace_back(ProfileReport::Operator{op, sum.nodes, milliseconds(sum.ns), share_of(sum.ns), {}, {}});
      if (!sum.known || sum.flops <= 0) continue;
      made.flops = sum.flops;
      if (sum.ns > 0) made.gflops = rounded(sum.flops / sum.ns, 100);
    }
    return list;
  }

  // Returns the times of a training step's phases, in execution order.
  std::vector<ProfileReport::Phase> phases() const {
    std::vector<ProfileReport::Phase> list;
    for (const char* phase : {"forward", "backward", "communication", "optimizer"}) {
      int64_t nodes = 0;
      double ns = 0;
      for (size_t i = 0; i < profile_.nodes.size(); ++i)
        if (profile_.nodes[i].phase == phase) ++nodes, ns += node_mean_ns(i);
      if (nodes > 0) list.push_back({phase, nodes, milliseconds(ns), share_of(ns)});
    }
    return list;
  }

  MemorySection memory() const {
    MemorySection section;
    for (size_t c = 0; c < kNumMemoryClasses; ++c) {
      const MemoryUsage& usage = profile_.memory_statistics.classes[c];
      if (usage.peak_bytes > 0) section.classes.push_back({class_name(static_cast<MemoryClass>(c)), usage.bytes, usage.peak_bytes});
    }
    section.peak_bytes = profile_.memory_statistics.total.peak_bytes;
    section.weight_bytes = profile_.memory.weight_bytes;
    section.packed_bytes = profile_.memory.packed_bytes;
    section.arena_bytes = profile_.memory.arena_bytes;
    section.arena_lower_bound_bytes = profile_.memory.arena_lower_bound_bytes;
    section.arena_sum_bytes = profile_.memory.arena_sum_bytes;
    section.steps = profile_.steps;
    for (const ProfiledBuffer& b : profile_.buffers)
      section.buffers.push_back({b.name, class_name(b.memory_class), b.size_bytes, b.offset_bytes, b.first, b.last});
    add_memory_timeline(section);
    if (profile_.measured_memory) section.measured = measured_memory_of(*profile_.measured_memory);
    return section;
  }

  void add_memory_timeline(MemorySection& section) const {
    const MemoryTimeline timeline = memory_timeline(profile_);
    if (timeline.peak_bytes == 0) return;
    for (const auto& [memory_class, bytes] : timeline.bytes) section.live.emplace_back(class_name(memory_class), bytes);
    section.peak = {.step = timeline.peak_step,
                    .node = profile_.nodes[static_cast<size_t>(profile_.steps[timeline.peak_step])].name,
                    .bytes = timeline.peak_bytes,
                    .values = {}};
    for (const ProfiledBuffer* buffer : timeline.at_peak)
      section.peak->values.push_back({buffer->name, class_name(buffer->memory_class), buffer->size_bytes});
  }

  static TimelineEvents timeline(const std::vector<ProfiledEvent>& events) {
    TimelineEvents made{.events = static_cast<int64_t>(events.size())};
    const bool has_phases = std::any_of(events.begin(), events.end(), [](const ProfiledEvent& event) { return event.phase >= 0; });
    const bool has_waits = std::any_of(events.begin(), events.end(), [](const ProfiledEvent& event) { return event.waited_ns >= 1000; });
    for (size_t i = 0; i < std::min(events.size(), kMaxTimelineEvents); ++i) {
      made.item.push_back(events[i].node);
      made.thread.push_back(events[i].thread);
      made.start_us.push_back(microseconds(events[i].start_ns));
      made.duration_us.push_back(microseconds(events[i].duration_ns));
      if (has_phases) made.phase.push_back(events[i].phase);
      if (has_waits) made.waited_us.push_back(microseconds(events[i].waited_ns));
    }
    return made;
  }

  const Profile& profile_;
  const ProfileContext& context_;
  MachinePeaks peaks_;  // those of the context, raised by raise_peak()
  std::vector<double> walls_;
  std::vector<size_t> typical_;
  std::vector<Kind> kinds_;
  std::vector<double> bounds_ns_;  // least possible time of one call of each node, in ns; 0: unknown
  CriticalPath path_;
  bool has_calls_ = false;
  double wall_ns_ = 0;
};

}  // namespace
}  // namespace profile

ProfileReport report_profile(const Profile& profile, const ProfileContext& context) {
  return profile::ReportBuilder(profile, context).build();
}

}  // namespace treadle
