// A profile as JSON: the document that tables, pages and comparisons are made of.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/cpu_info.h"
#include "profile/analysis/critical_path.h"
#include "profile/analysis/memory_timeline.h"
#include "profile/analysis/report_parts.h"
#include "profile/analysis/statistics.h"
#include "profile/analysis/tree.h"
#include "treadle/profile.h"

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

using Json = Document;

// A node whose bytes would have to move faster than this part of the peak has not moved them: they lay in place.
constexpr double kPlausible = 1.3;
constexpr size_t kMaxTimelineEvents = 1'000'000;

Json operands_json(const std::vector<ProfiledOperand>& operands) {
  Json list = Json::array();
  for (const ProfiledOperand& operand : operands) {
    if (operand.name.empty()) continue;
    Json json{{"name", operand.name}};
    if (operand.dtype != DType::undefined) json["dtype"] = name_of(operand.dtype);
    if (operand.shape) json["shape"] = operand.shape->dims();
    if (operand.constant) json["constant"] = true;
    if (!operand.shares.empty()) json["shares"] = operand.shares;
    if (operand.row_step != 0) json["strides"] = operand.strides();
    if (!operand.value.empty()) json["value"] = operand.value;
    list.push_back(std::move(json));
  }
  return list;
}

class ReportBuilder {
 public:
  ReportBuilder(const Profile& profile, const ProfileContext& context) : profile_(profile), context_(context) {
    has_calls_ = context.call_ns.size() == profile.runs.size();
    for (size_t r = 0; r < profile.runs.size(); ++r) walls_.push_back(has_calls_ ? context.call_ns[r] : profile.runs[r].duration_ns);
    typical_ = middle_half(walls_);
    wall_ns_ = typical_mean([&](size_t r) { return walls_[r]; });
  }

  Json build() {
    Json json{{"format", "treadle-profile"}, {"version", 1}};
    add_headline(json);
    judge_nodes();
    find_critical_path();
    json["where"] = where();
    if (path_.ms > 0) json["critical_path"] = {{"ms", rounded(path_.ms)}, {"all_nodes_ms", rounded(path_.all_ms)}, {"nodes", path_.nodes}};
    if (const double ns = typical_mean([&](size_t r) { return profile_.runs[r].waited_ns; }); ns > 0) json["waited_ms"] = milliseconds(ns);
    json["nodes"] = nodes();
    json["operators"] = operators();
    if (Json list = layers_json(json["nodes"]); !list.empty()) json["layers"] = std::move(list);
    if (Json list = phases(); !list.empty()) json["phases"] = std::move(list);
    if (!profile_.pool.empty()) json["pool"] = pool_json(profile_);
    if (!profile_.load.empty()) json["load"] = load_json(profile_);
    if (!profile_.ranges.empty()) json["ranges"] = ranges_json(profile_);
    if (!profile_.marks.empty()) json["marks"] = marks_json(profile_);
    json["memory"] = memory();
    if (context_.remedies_tried) json["remedies"] = remedies();
    json["timeline"] = {
        {"threads", profile_.threads}, {"median", timeline(profile_.median_run)}, {"slowest", timeline(profile_.slowest_run)}};
    if (!profile_.spans.empty()) json["timeline"]["ranges"] = spans_json(profile_);
    return json;
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

  void add_headline(Json& json) {
    if (!context_.model.empty()) json["model"] = context_.model;
    if (!context_.command.empty()) json["command"] = context_.command;
    json["assumed_extents"] = context_.assumed_extents;
    const CpuInfo& cpu = cpu_info();
    json["environment"] = {
        {"cpu", profile_.cpu.empty() ? cpu.model_name : profile_.cpu},
        {"usable_cpus", cpu.usable_cpus},
        {"treadle", TREADLE_VERSION},
        {"unix_time", std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count()}};
    if (context_.peaks.threads > 0 && context_.peaks.flops_per_second > 0) json["environment"]["threads"] = context_.peaks.threads;
    if (!context_.options.empty()) json["environment"]["options"] = context_.options;
    json["runs"] = {{"recorded", profile_.runs.size()}, {"warmup", context_.warmup_runs}};
    if (!walls_.empty()) json["runs"]["ms"] = summary_json(walls_);
    if (!context_.plain_ns.empty()) json["runs"]["plain_ms"] = summary_json(context_.plain_ns);
    if (context_.load_ms > 0) json["runs"]["load_ms"] = rounded(context_.load_ms);
    if (context_.first_run_ms > 0) json["runs"]["first_run_ms"] = rounded(context_.first_run_ms);
    add_profiler_cost(json);
    if (!profile_.clock.empty()) json["clock"] = clock_json(profile_);
    if (context_.peaks.flops_per_second <= 0) return;
    Json bandwidth = Json::array();
    for (const auto& [bytes, rate] : context_.peaks.bytes_per_second)
      bandwidth.push_back({{"bytes", bytes}, {"gb_per_s", rounded(rate / 1e9, 100)}});
    json["peaks"] = {
        {"threads", context_.peaks.threads}, {"gflops", rounded(context_.peaks.flops_per_second / 1e9, 100)}, {"bandwidth", bandwidth}};
  }

  void add_profiler_cost(Json& json) {
    Json cost{{"ns_per_event", rounded(profile_.ns_per_event, 10)},
              {"events_per_run", typical_mean([&](size_t r) { return static_cast<double>(profile_.runs[r].events); })},
              {"events_lost", profile_.events_lost},
              {"events_unknown", profile_.events_unknown}};
    if (!context_.plain_ns.empty() && !walls_.empty()) {
      // Only where the medians lie apart: else there is nothing to be seen beyond the noise.
      const Summary plain = summarise(context_.plain_ns), recorded = summarise(walls_);
      cost["slowdown"] = nullptr;
      if (plain.interval && recorded.interval &&
          (plain.interval->second < recorded.interval->first || recorded.interval->second < plain.interval->first))
        cost["slowdown"] = rounded(recorded.median / plain.median - 1, 1e4);
    }
    json["profiler"] = std::move(cost);
  }

  // What bounds each node, and the least time that the machine could take.
  void judge_nodes() {
    for (const ProfiledNode& node : profile_.nodes) {
      const bool costed = node.flops && node.bytes;
      bounds_ns_.push_back(costed ? context_.peaks.bound_ns(*node.flops, *node.bytes) : 0);
      kinds_.push_back(kind_of(node, bounds_ns_.back()));
    }
  }

  Kind kind_of(const ProfiledNode& node, double bound_ns) const {
    if (node.kernel.empty() && !node.between_devices) return Kind::control_flow;
    if (node.moves) return Kind::moves;
    if (bound_ns == 0) return Kind::unknown;
    if (*node.flops / context_.peaks.flops_per_second < *node.bytes / context_.peaks.bandwidth(*node.bytes)) return Kind::memory;
    return context_.peaks_hold && computes_in_float32(node) ? Kind::compute : Kind::other_numbers;
  }

  double node_mean_ns(size_t i) const {
    return profile_.nodes[i].self_ns.empty() ? 0 : typical_mean([&](size_t r) { return profile_.nodes[i].self_ns[r]; });
  }

  double all_self_ns(size_t i) const { return std::accumulate(profile_.nodes[i].self_ns.begin(), profile_.nodes[i].self_ns.end(), 0.0); }

  // Parts of a typical run, which sum to the whole of it.
  Json where() const {
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
    // Recording takes place between nodes, of the graph or of a body; where one begins when the one before ends, in them.
    const double events = typical_mean([&](size_t r) { return static_cast<double>(profile_.runs[r].events); }) - 1;
    double between_ns = mean_of(&ProfiledRun::between_ns);
    const double recording_ns = std::clamp(events * profile_.ns_per_event, 0.0, between_ns + kernel_ns / 2);
    const double within_ns = std::max(0.0, recording_ns - between_ns);
    between_ns -= recording_ns - within_ns;
    // With several nodes at once, a node's time counts by its part of all of them.
    const double scale = nodes_ns > 0 ? (kernel_ns - within_ns) / nodes_ns : 0;
    auto of = [&](Kind kind) { return kinds[static_cast<size_t>(kind)] * scale; };
    Json list = Json::array();
    auto add = [&](const char* id, const char* title, double ns) {
      if (ns > 0) list.push_back({{"id", id}, {"title", title}, {"ms", milliseconds(ns)}, {"share", rounded(ns / wall_ns_)}});
    };
    add("compute", "nodes bound by computing", of(Kind::compute));
    add("other_numbers", "nodes that compute in other numbers than float32", of(Kind::other_numbers));
    add("memory", "nodes bound by memory", of(Kind::memory));
    add("moves", "nodes that only move data", of(Kind::moves));
    add("unknown", context_.peaks.flops_per_second > 0 ? "nodes of unknown cost" : "nodes", of(Kind::unknown));
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

  // A node with bodies takes as long as all that runs in them.
  void find_critical_path() {
    std::vector<double> node_ms(profile_.nodes.size(), 0);
    for (size_t i = profile_.nodes.size(); i-- > 0;) {  // bodies stand behind their node
      node_ms[i] += node_mean_ns(i) / 1e6;
      if (profile_.nodes[i].parent >= 0) node_ms[static_cast<size_t>(profile_.nodes[i].parent)] += node_ms[i];
    }
    path_ = critical_path(profile_, node_ms);
  }

  Json nodes() const {
    Json list = Json::array();
    for (size_t i = 0; i < profile_.nodes.size(); ++i) {
      const ProfiledNode& node = profile_.nodes[i];
      Json json{{"name", node.name}, {"op", node.op_type}};
      if (!node.kernel.empty()) json["kernel"] = node.kernel;
      if (!node.forms.empty()) json["forms"] = node.forms;
      if (node.parent >= 0) json["parent"] = node.parent;
      if (!node.phase.empty()) json["phase"] = node.phase;
      if (node.sequence >= 0) json["sequence"] = node.sequence;
      if (!node.forward.empty()) json["forward"] = node.forward;
      if (node.between_devices) json["between_devices"] = true;
      if (!(node.sources.empty() || (node.sources.size() == 1 && node.sources[0] == node.name))) json["sources"] = node.sources;
      if (!node.layers.empty()) json["layers"] = node.layers;
      if (!node.passes.empty()) json["passes"] = node.passes;
      for (const ProfiledUnusedKernel& unused : node.unused_kernels)
        json["unused_kernels"].push_back({{"kernel", unused.name}, {"why", unused.why}});
      json["inputs"] = operands_json(node.inputs);
      json["outputs"] = operands_json(node.outputs);
      if (node.packed_bytes > 0) json["packed_bytes"] = node.packed_bytes;
      add_times(json, i);
      list.push_back(std::move(json));
    }
    return list;
  }

  void add_times(Json& json, size_t i) const {
    const ProfiledNode& node = profile_.nodes[i];
    if (node.flops) json["flops"] = *node.flops;
    if (node.bytes) json["bytes"] = *node.bytes;
    if (profile_.runs.empty()) return;
    const double calls = static_cast<double>(node.calls) / static_cast<double>(profile_.runs.size());
    json["calls"] = rounded(calls, 1000);
    json["ms"] = summary_json(node.self_ns);
    const double mean = node_mean_ns(i);
    if (path_.ms > 0 && path_.slack_ms[i] >= 0) json["slack_ms"] = rounded(path_.slack_ms[i]);
    if (!node.ready_ns.empty() && std::all_of(typical_.begin(), typical_.end(), [&](size_t r) { return node.ready_ns[r] >= 0; })) {
      json["ready_ms"] = milliseconds(typical_mean([&](size_t r) { return node.ready_ns[r]; }));
      json["waited_ms"] = milliseconds(typical_mean([&](size_t r) { return node.waited_ns[r]; }));
    }
    json["mean_ms"] = milliseconds(mean);
    if (node.barrier_ns > 0) json["barrier_ms"] = milliseconds(node.barrier_ns / static_cast<double>(profile_.runs.size()));
    json["share"] = rounded(wall_ns_ > 0 ? mean / wall_ns_ : 0);
    if (!node.kernel_phases.empty()) json["kernel_phases"] = kernel_phases(node);
    const double median = summarise(node.self_ns).median;
    if (median <= 0 || calls <= 0) return;
    // Bytes that would have moved faster than the machine moves any did not move, and the rate would say nothing.
    const double bound = bounds_ns_[i] * calls;
    const bool computes = kinds_[i] == Kind::compute || kinds_[i] == Kind::other_numbers;
    const bool in_place = !computes && bound > kPlausible * median;
    if (node.flops && *node.flops > 0) json["gflops"] = rounded(*node.flops * calls / median, 100);
    if (node.bytes && *node.bytes > 0 && !in_place) json["gb_per_s"] = rounded(*node.bytes * calls / median, 100);
    if (bound <= 0 || in_place) return;
    json["bound"] = computes ? "compute" : "memory";
    if (kinds_[i] == Kind::other_numbers) return;
    json["bound_ms"] = milliseconds(bound);
    json["of_peak"] = rounded(bound / median, 1e4);
  }

  Json kernel_phases(const ProfiledNode& node) const {
    double all_ns = 0;
    std::vector<double> means;
    for (const ProfiledKernelPhase& phase : node.kernel_phases) {
      means.push_back(typical_mean([&](size_t r) { return phase.self_ns[r]; }));
      all_ns += means.back();
    }
    Json list = Json::array();
    for (size_t i = 0; i < means.size(); ++i) {
      const ProfiledKernelPhase& phase = node.kernel_phases[i];
      list.push_back({{"phase", phase.name},
                      {"calls", rounded(static_cast<double>(phase.calls) / static_cast<double>(profile_.runs.size()), 1000)},
                      {"ms", summary_json(phase.self_ns)},
                      {"mean_ms", milliseconds(means[i])},
                      {"share", rounded(all_ns > 0 ? means[i] / all_ns : 0)}});
    }
    return list;
  }

  Json operators() const {
    struct Sum {
      int64_t nodes = 0;
      double ns = 0, flops = 0, bytes = 0;
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
      sum.bytes += node.bytes.value_or(0) * calls;
      sum.known = sum.known && node.flops.has_value();
    }
    std::vector<std::pair<std::string, Sum>> sorted(sums.begin(), sums.end());
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
    Json list = Json::array();
    for (const auto& [op, sum] : sorted) {
      Json json{{"op", op}, {"nodes", sum.nodes}, {"ms", milliseconds(sum.ns)}, {"share", rounded(wall_ns_ > 0 ? sum.ns / wall_ns_ : 0)}};
      if (sum.known && sum.flops > 0) json["flops"] = sum.flops;
      if (sum.known && sum.flops > 0 && sum.ns > 0) json["gflops"] = rounded(sum.flops / sum.ns, 100);
      list.push_back(std::move(json));
    }
    return list;
  }

  // Of a training step, in the order of execution.
  Json phases() const {
    Json list = Json::array();
    for (const char* phase : {"forward", "backward", "communication", "optimizer"}) {
      int64_t nodes = 0;
      double ns = 0;
      for (size_t i = 0; i < profile_.nodes.size(); ++i)
        if (profile_.nodes[i].phase == phase) ++nodes, ns += node_mean_ns(i);
      if (nodes > 0)
        list.push_back(
            {{"phase", phase}, {"nodes", nodes}, {"ms", milliseconds(ns)}, {"share", rounded(wall_ns_ > 0 ? ns / wall_ns_ : 0)}});
    }
    return list;
  }

  Json memory() const {
    Json json;
    Json& classes = json["classes"] = Json::array();
    for (size_t c = 0; c < kNumMemoryClasses; ++c) {
      const MemoryUsage& usage = profile_.memory_statistics.classes[c];
      if (usage.peak_bytes > 0)
        classes.push_back(
            {{"class", memory_class_name(static_cast<MemoryClass>(c))}, {"bytes", usage.bytes}, {"peak_bytes", usage.peak_bytes}});
    }
    json["peak_bytes"] = profile_.memory_statistics.total.peak_bytes;
    json["weight_bytes"] = profile_.memory.weight_bytes;
    json["packed_bytes"] = profile_.memory.packed_bytes;
    json["arena_bytes"] = profile_.memory.arena_bytes;
    json["arena_lower_bound_bytes"] = profile_.memory.arena_lower_bound_bytes;
    json["arena_sum_bytes"] = profile_.memory.arena_sum_bytes;
    json["steps"] = profile_.steps;
    Json& buffers = json["buffers"] = Json::array();
    for (const ProfiledBuffer& b : profile_.buffers)
      buffers.push_back({{"name", b.name},
                         {"class", memory_class_name(b.memory_class)},
                         {"bytes", b.size_bytes},
                         {"offset", b.offset_bytes},
                         {"first", b.first},
                         {"last", b.last}});
    add_memory_timeline(json);
    if (profile_.measured_memory) json["measured"] = measured_memory_json(*profile_.measured_memory);
    return json;
  }

  void add_memory_timeline(Json& json) const {
    const MemoryTimeline timeline = memory_timeline(profile_);
    if (timeline.peak_bytes == 0) return;
    for (const auto& [memory_class, bytes] : timeline.bytes) json["live"][std::string(memory_class_name(memory_class))] = bytes;
    Json values = Json::array();
    for (const ProfiledBuffer* buffer : timeline.at_peak)
      values.push_back({{"name", buffer->name}, {"class", memory_class_name(buffer->memory_class)}, {"bytes", buffer->size_bytes}});
    json["peak"] = {{"step", timeline.peak_step},
                    {"node", profile_.nodes[static_cast<size_t>(profile_.steps[timeline.peak_step])].name},
                    {"bytes", timeline.peak_bytes},
                    {"values", values}};
  }

  Json remedies() const {
    Json list = Json::array();
    for (const ProfileRemedy& remedy : context_.remedies)
      list.push_back({{"title", remedy.title},
                      {"saves", remedy.saves},
                      {"effect", rounded(remedy.effect, 1e4)},
                      {"evidence", remedy.evidence},
                      {"command", remedy.command}});
    return list;
  }

  static Json timeline(const std::vector<ProfiledEvent>& events) {
    Json node = Json::array(), thread = Json::array(), start = Json::array(), duration = Json::array(), phase = Json::array();
    Json waited = Json::array();
    const bool has_phases = std::any_of(events.begin(), events.end(), [](const ProfiledEvent& event) { return event.phase >= 0; });
    const bool has_waits = std::any_of(events.begin(), events.end(), [](const ProfiledEvent& event) { return event.waited_ns >= 1000; });
    for (size_t i = 0; i < std::min(events.size(), kMaxTimelineEvents); ++i) {
      node.push_back(events[i].node);
      thread.push_back(events[i].thread);
      start.push_back(rounded(events[i].start_ns / 1e3, 1000));
      duration.push_back(rounded(events[i].duration_ns / 1e3, 1000));
      if (has_phases) phase.push_back(events[i].phase);
      if (has_waits) waited.push_back(rounded(events[i].waited_ns / 1e3, 1000));
    }
    Json json{{"events", events.size()}, {"node", node}, {"thread", thread}, {"start_us", start}, {"duration_us", duration}};
    if (has_phases) json["phase"] = std::move(phase);
    if (has_waits) json["waited_us"] = std::move(waited);
    return json;
  }

  const Profile& profile_;
  const ProfileContext& context_;
  std::vector<double> walls_;
  std::vector<size_t> typical_;
  std::vector<Kind> kinds_;
  std::vector<double> bounds_ns_;  // of one call; 0: not known
  CriticalPath path_;
  bool has_calls_ = false;
  double wall_ns_ = 0;
};

}  // namespace
}  // namespace profile

std::string profile_to_json(const Profile& profile, const ProfileContext& context) {
  return profile::ReportBuilder(profile, context).build().dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace treadle
