// Converts the report of a profile to JSON and back. docs/profiling.md describes the fields.
#include "profile/model/report_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/json_depth.h"
#include "profile/model/explanation.h"
#include "profile/model/json.h"
#include "treadle/profile_report.h"

namespace treadle {
namespace profile {

// These functions are not in an unnamed namespace, because the templates in json.h would not find them there.
void fields(auto& v, ProfileTimes& t) {
  v.must("median", t.median), v.opt("interval", t.interval);
  v.may("p10", t.p10), v.may("p90", t.p90), v.may("min", t.min), v.may("max", t.max);
}

void fields(auto& v, ProfiledOperand& o) {
  std::string dtype(o.dtype == DType::undefined ? "" : name_of(o.dtype));
  std::optional<std::vector<int64_t>> shape;
  if (o.shape) shape.emplace(o.shape->begin(), o.shape->end());
  std::vector<int64_t> strides;
  if (o.row_step != 0) strides = o.strides();
  v.must("name", o.name), v.opt("dtype", dtype), v.opt("shape", shape), v.opt("constant", o.constant), v.opt("shares", o.shares);
  v.opt("strides", strides), v.opt("value", o.value);
  if constexpr (std::remove_cvref_t<decltype(v)>::kReads) {
    o.dtype = dtype_from_name(dtype);
    if (shape) o.shape = Shape(*shape);
    if (shape && strides.size() == shape->size() && strides.size() >= 2) o.row_step = strides[strides.size() - 2];
  }
}

void fields(auto& v, ProfiledUnusedKernel& u) { v.must("kernel", u.name), v.must("why", u.why); }

void fields(auto& v, KernelPhaseReport& p) {
  v.must("phase", p.name), v.must("calls", p.calls), v.must("ms", p.ms), v.may("mean_ms", p.mean_ms), v.must("share", p.share);
}

void fields(auto& v, PassRefusal& r) { v.must("pass", r.pass), v.must("why", r.why); }

void fields(auto& v, NodeReport& n) {
  v.may("name", n.name), v.may("op", n.op_type), v.opt("kernel", n.kernel), v.opt("forms", n.forms), v.opt("parent", n.parent, -1);
  v.opt("phase", n.phase), v.opt("sequence", n.sequence, int64_t{-1}), v.opt("forward", n.forward);
  v.opt("between_devices", n.between_devices), v.opt("device", n.device), v.opt("sources", n.sources), v.opt("layers", n.layers),
      v.opt("passes", n.passes);
  v.opt("unused_kernels", n.unused_kernels), v.may("inputs", n.inputs), v.may("outputs", n.outputs);
  v.opt("packed_bytes", n.packed_bytes), v.opt("flops", n.flops), v.opt("bytes", n.bytes), v.opt("calls", n.calls), v.opt("ms", n.ms);
  v.opt("slack_ms", n.slack_ms), v.opt("ready_ms", n.ready_ms), v.opt("waited_ms", n.waited_ms), v.opt("mean_ms", n.mean_ms);
  v.opt("barrier_ms", n.barrier_ms), v.opt("share", n.share), v.opt("kernel_phases", n.kernel_phases), v.opt("gflops", n.gflops);
  v.opt("gb_per_s", n.gb_per_s), v.opt("bound", n.bound), v.opt("bound_ms", n.bound_ms), v.opt("of_peak", n.of_peak),
      v.opt("above_peak", n.above_peak);
  v.opt("estimated_ms", n.estimated_ms), v.opt("left_alone", n.left_alone);
}

void fields(auto& v, HoldingReport& h) { v.opt("name", h.name), v.must("class", h.memory_class), v.must("bytes", h.bytes); }

void fields(auto& v, MeasuredMemoryReport::Block& b) {
  fields(v, static_cast<HoldingReport&>(b));
  v.must("id", b.id), v.must("taken_ms", b.taken_ms), v.opt("returned_ms", b.returned_ms);
}

void fields(auto& v, MeasuredMemoryReport::Refusal& r) {
  fields(v, static_cast<HoldingReport&>(r));
  v.must("ms", r.ms);
}

void fields(auto& v, MeasuredMemoryReport::Peak& p) {
  v.must("ms", p.ms), v.must("bytes", p.bytes), v.must("classes", p.classes), v.must("holders", p.holders);
  v.opt("more_holders", p.more_holders), v.opt("more_holders_bytes", p.more_holders_bytes);
}

void fields(auto& v, MeasuredMemoryReport::Timeline& t) { v.must("points", t.points), v.must("ms", t.ms), v.opt("bytes", t.bytes); }

void fields(auto& v, MeasuredMemoryReport& m) {
  v.must("events", m.events), v.must("before", m.before), v.must("peak", m.peak), v.must("timeline", m.timeline);
  v.may("num_blocks", m.num_blocks), v.may("blocks", m.blocks), v.must("refused", m.refused);
}

void fields(auto& v, MemorySection::Class& c) { v.must("class", c.name), v.must("bytes", c.bytes), v.must("peak_bytes", c.peak_bytes); }

void fields(auto& v, MemorySection::Buffer& b) {
  v.must("name", b.name), v.must("class", b.memory_class), v.must("bytes", b.bytes), v.must("offset", b.offset);
  v.must("first", b.first), v.must("last", b.last);
}

void fields(auto& v, MemorySection::Peak& p) {
  v.must("step", p.step), v.must("node", p.node), v.must("bytes", p.bytes), v.must("values", p.values);
}

void fields(auto& v, MemorySection& m) {
  v.may("classes", m.classes), v.may("peak_bytes", m.peak_bytes), v.may("weight_bytes", m.weight_bytes);
  v.may("packed_bytes", m.packed_bytes), v.may("arena_bytes", m.arena_bytes);
  v.may("arena_lower_bound_bytes", m.arena_lower_bound_bytes), v.may("arena_sum_bytes", m.arena_sum_bytes), v.may("steps", m.steps);
  v.may("buffers", m.buffers), v.opt("live", m.live), v.opt("peak", m.peak), v.opt("measured", m.measured);
}

void events_fields(auto& v, TimelineEvents& t, const char* item) {
  v.may("events", t.events), v.must(item, t.item), v.must("thread", t.thread), v.must("start_us", t.start_us);
  v.must("duration_us", t.duration_us), v.opt("phase", t.phase), v.opt("waited_us", t.waited_us);
}
void fields(auto& v, TimelineEvents& t) { events_fields(v, t, "node"); }
struct RangeEvents : TimelineEvents {};
void fields(auto& v, RangeEvents& t) { events_fields(v, t, "range"); }

void fields(auto& v, ProfileReport::Timeline& t) {
  v.may("threads", t.threads), v.may("median", t.median), v.may("slowest", t.slowest);
  std::optional<RangeEvents> ranges;
  constexpr bool reads = std::remove_cvref_t<decltype(v)>::kReads;
  if (!reads && t.ranges) ranges.emplace(RangeEvents{*t.ranges});
  v.opt("ranges", ranges);
  if (reads && ranges) t.ranges = std::move(*ranges);
}

void fields(auto& v, ProfileReport::Environment& e) {
  v.may("cpu", e.cpu), v.may("usable_cpus", e.usable_cpus), v.may("treadle", e.treadle), v.may("unix_time", e.unix_time);
  v.opt("threads", e.threads), v.opt("options", e.options);
}

void fields(auto& v, ProfileReport::Runs& r) {
  v.may("recorded", r.recorded), v.may("warmup", r.warmup), v.opt("ms", r.ms), v.opt("plain_ms", r.plain_ms);
  v.opt("load_ms", r.load_ms), v.opt("first_run_ms", r.first_run_ms);
}

void fields(auto& v, ProfileReport::Cost& c) {
  v.may("ns_per_event", c.ns_per_event), v.may("events_per_run", c.events_per_run), v.may("events_lost", c.events_lost);
  v.may("events_unknown", c.events_unknown), v.opt("slowdown", c.slowdown);
}

void fields(auto& v, ProfileReport::Clock& c) { v.must("pairs", c.pairs), v.must("set_ms", c.set_ms); }

void fields(auto& v, ProfileReport::Peaks::Bandwidth& b) { v.must("bytes", b.bytes), v.must("gb_per_s", b.gb_per_s); }

void fields(auto& v, ProfileReport::Peaks& p) {
  v.must("threads", p.threads), v.must("gflops", p.gflops), v.must("bandwidth", p.bandwidth);
  v.may("spread", p.spread), v.opt("busy", p.busy), v.opt("kept", p.kept), v.opt("raised_by", p.raised_by);
}

void fields(auto& v, ProfileReport::DevicePeaks& p) {
  v.must("device", p.device), v.must("gflops", p.gflops), v.must("bandwidth", p.bandwidth);
}

void fields(auto& v, ProfileReport::Part& p) { v.may("id", p.id), v.must("title", p.title), v.must("ms", p.ms), v.must("share", p.share); }

void fields(auto& v, ProfileReport::CriticalPath& p) {
  v.must("ms", p.ms), v.must("all_nodes_ms", p.all_nodes_ms), v.must("nodes", p.nodes);
}

void fields(auto& v, ProfileReport::Operator& o) {
  v.must("op", o.op), v.may("nodes", o.nodes), v.may("ms", o.ms), v.may("share", o.share), v.opt("flops", o.flops);
  v.opt("gflops", o.gflops);
}

void fields(auto& v, ProfileReport::Layer& l) {
  v.must("name", l.name), v.opt("parent", l.parent, -1), v.opt("is_phase", l.is_phase), v.must("nodes", l.nodes), v.must("ms", l.ms);
  v.must("self_ms", l.self_ms), v.must("share", l.share);
}

void fields(auto& v, ProfileReport::Phase& p) {
  v.must("phase", p.name), v.must("nodes", p.nodes), v.must("ms", p.ms), v.must("share", p.share);
}

struct PoolStates {
  std::array<double, 4>& states;
};
void fields(auto& v, PoolStates& s) {
  for (size_t i = 0; i < s.states.size(); ++i) v.must(ProfiledPoolThread::kStateNames[i], s.states[i]);
}

void fields(auto& v, ProfileReport::PoolThread& t) {
  v.may("thread", t.thread), v.must("name", t.name), v.must("calls", t.calls), v.may("ms", t.ms);
  PoolStates states{t.states};
  v.must("states", states);
}

void fields(auto& v, ProfileReport::Load& l) {
  v.must("name", l.name), v.opt("parent", l.parent, -1), v.must("calls", l.calls), v.may("start_ms", l.start_ms), v.must("ms", l.ms);
}

void fields(auto& v, ProfileReport::Range& r) {
  v.must("name", r.name), v.opt("parent", r.parent, -1), v.opt("python", r.python), v.must("calls", r.calls), v.must("ms", r.ms);
  v.must("total_ms", r.total_ms), v.must("self_ms", r.self_ms), v.must("runs_ms", r.runs_ms);
}

void fields(auto& v, ProfileReport::Marks& m) {
  v.may("events", m.events), v.must("name", m.name), v.must("thread", m.thread), v.must("ms", m.ms);
}

void fields(auto& v, ProfileRemedy& r) {
  v.may("title", r.title), v.may("saves", r.saves), v.may("effect", r.effect), v.may("evidence", r.evidence), v.may("command", r.command);
}

// Converts all fields except the timeline, which is written separately.
void fields(auto& v, ProfileReport& r) {
  v.opt("model", r.model), v.opt("command", r.command), v.may("assumed_extents", r.assumed_extents);
  v.may("environment", r.environment), v.must("runs", r.runs), v.opt("profiler", r.profiler), v.opt("clock", r.clock);
  v.opt("peaks", r.peaks), v.opt("device_peaks", r.device_peaks), v.may("where", r.where), v.opt("critical_path", r.critical_path),
      v.opt("waited_ms", r.waited_ms);
  v.must("nodes", r.nodes), v.may("operators", r.operators), v.opt("layers", r.layers), v.opt("phases", r.phases);
  v.opt("pool", r.pool), v.opt("load", r.load), v.opt("ranges", r.ranges), v.opt("marks", r.marks), v.opt("memory", r.memory);
  v.opt("remedies", r.remedies);
}

void fields(auto& v, TimeDifference& d) {
  std::string verdict = change_word(d.verdict);
  v.must("verdict", verdict), v.must("before_ms", d.before_ms), v.must("after_ms", d.after_ms), v.opt("change", d.change);
}

void fields(auto& v, ProfileDifference::Node& n) {
  v.must("name", n.name), v.must("op", n.op_type);
  fields(v, static_cast<TimeDifference&>(n));
  v.opt("plan", n.plan);
}

void fields(auto& v, ProfileDifference& d) {
  v.must("tolerance", d.tolerance), v.must("run", d.run), v.must("nodes", d.nodes), v.opt("environment", d.environment);
  v.must("only_before", d.only_before), v.must("only_after", d.only_after), v.must("memory", d.memory);
}

void fields(auto& v, PassChange& c) {
  v.must("what", c.what), v.must("op", c.op_type), v.must("name", c.name), v.must("sources", c.sources), v.opt("took", c.took);
}

void fields(auto& v, PassReport& p) {
  v.must("pass", p.pass), v.must("nodes_before", p.nodes_before), v.must("nodes_after", p.nodes_after);
  v.must("elapsed_us", p.elapsed_us), v.must("changes", p.changes);
}

void fields(auto& v, ViewReport& n) { v.must("name", n.name), v.must("op", n.op_type), v.must("sources", n.sources); }

void fields(auto& v, Explanation& e) {
  v.must("model", e.plan.model), v.must("nodes_as_read", e.nodes_as_read), v.must("assumed_extents", e.plan.assumed_extents);
  v.must("environment", e.plan.environment), v.opt("peaks", e.plan.peaks), v.must("passes", e.passes), v.must("views", e.views);
  v.must("nodes", e.plan.nodes), v.opt("memory", e.plan.memory);
}

void fields(auto& v, NodeHistory::Step& s) { v.must("pass", s.pass), v.must("what", s.what); }

void fields(auto& v, NodeHistory& h) {
  v.must("node", h.node), v.must("assumed_extents", h.assumed_extents), v.must("steps", h.steps), v.must("runs_as", h.runs_as);
  v.opt("views", h.views);
}

namespace {

Document headed(const char* format) { return {{"format", format}, {"version", 1}}; }

template <typename T>
Document headed_json(const char* format, const T& value) {
  Document json = headed(format);
  JsonWriter writer{json};
  fields(writer, const_cast<T&>(value));  // safe, since a writer changes nothing
  return json;
}

size_t skip_spaces(std::string_view text, size_t i) { return std::min(text.find_first_not_of(" \t\r\n", i), text.size()); }

// Returns the position after the closing quote of the JSON string that begins at position i.
size_t skip_string(std::string_view text, size_t i) {
  for (++i; i < text.size() && text[i] != '"'; ++i)
    if (text[i] == '\\') ++i;
  return std::min(i + 1, text.size());
}

// Replaces the timeline in a JSON text by null. A timeline of 1,000,000 events is nearly all of the text, and parsing it takes a second.
std::string without_timeline(std::string_view text) {
  size_t from = 0;  // position where the timeline's value begins
  for (size_t i = 0, depth = 0; i < text.size();) {
    if (text[i] == '"') {
      const size_t end = skip_string(text, i), colon = skip_spaces(text, end);
      const bool is_key = depth == 1 && text.substr(i, end - i) == "\"timeline\"" && colon < text.size() && text[colon] == ':';
      const size_t value = is_key ? skip_spaces(text, colon + 1) : text.size();
      if (value < text.size() && text[value] == '{') from = value;
      i = end;
      continue;
    }
    if (text[i] == '{' || text[i] == '[') ++depth;
    if ((text[i] == '}' || text[i] == ']') && depth > 0 && --depth == 1 && from > 0)
      return std::string(text.substr(0, from)).append("null").append(text.substr(i + 1));
    ++i;
  }
  return std::string(text);
}

void check_header(const Document& json) {
  if (!json.is_object() || json.value("format", "") != "treadle-profile")
    throw Error(ErrorCode::invalid_argument, "this is no profile: `treadle profile MODEL --json` writes one");
  if (json.value("version", 0) != 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("this is a profile of version {}; this build reads version 1", json.value("version", Document()).dump()));
  if (!json.contains("nodes") || !json["nodes"].is_array() || !json.contains("runs") || !json["runs"].is_object())
    throw Error(ErrorCode::invalid_argument, "the profile lacks its nodes or runs");
}

// Checks that each item comes after its parent, and that items are not nested too deeply for recursive functions.
template <typename T>
void check_parents(const std::vector<T>& items, const char* what) {
  constexpr int kMostNested = 5000;
  std::vector<int> depth(items.size(), 0);
  for (size_t i = 0; i < items.size(); ++i) {
    const int32_t parent = items[i].parent;
    if (parent < -1 || parent >= static_cast<int32_t>(i))
      throw_damaged(fmt::format("{} {} lies in {}, which does not stand before it", what, i, parent));
    if (parent >= 0) depth[i] = depth[static_cast<size_t>(parent)] + 1;
    if (depth[i] > kMostNested) throw_damaged(fmt::format("{} {} lies more than {} deep in others", what, i, kMostNested));
  }
}

void check_columns(const TimelineEvents& t) {
  const size_t count = t.item.size();
  for (size_t other : {t.thread.size(), t.start_us.size(), t.duration_us.size()})
    if (other != count) throw_damaged("the columns of its timeline have different lengths");
  if ((!t.phase.empty() && t.phase.size() != count) || (!t.waited_us.empty() && t.waited_us.size() != count))
    throw_damaged("the columns of its timeline have different lengths");
}

// Checks that all indices are in range, since code that uses the report relies on this.
void check_indices(const ProfileReport& r) {
  const auto check_nodes = [&](const std::vector<int32_t>& indices) {
    for (int32_t i : indices)
      if (i < 0 || static_cast<size_t>(i) >= r.nodes.size()) throw_damaged(fmt::format("there is no node {}", i));
  };
  check_parents(r.nodes, "node");
  check_parents(r.layers, "layer");
  check_parents(r.load, "phase of loading");
  check_parents(r.ranges, "range");
  for (const NodeReport& node : r.nodes) check_nodes(node.forward);
  if (r.marks && (r.marks->thread.size() != r.marks->name.size() || r.marks->ms.size() != r.marks->name.size()))
    throw_damaged("the columns of its marks have different lengths");
  if (r.memory) {
    check_nodes(r.memory->steps);
    for (const auto& [name, bytes] : r.memory->live)
      if (bytes.size() != r.memory->steps.size()) throw_damaged("the bytes of " + name + " are not those of its steps");
  }
  if (!r.timeline) return;
  check_columns(r.timeline->median);
  check_columns(r.timeline->slowest);
  if (r.timeline->ranges) check_columns(*r.timeline->ranges);
}

}  // namespace

std::string report_to_json(const ProfileReport& report, std::string_view timeline) {
  std::string text = to_text(headed_json("treadle-profile", report));
  if (!timeline.empty()) text.insert(text.size() - 1, std::string(",\"timeline\":").append(timeline));
  return text;
}

std::string explanation_to_json(const Explanation& explanation) { return to_text(headed_json("treadle-explain", explanation)); }
std::string history_to_json(const NodeHistory& history) { return to_text(json_of(history)); }

const char* change_word(Change change) {
  constexpr std::array<const char*, 4> kWords{"unchanged", "faster", "slower", "cannot tell"};
  return kWords[static_cast<size_t>(change)];
}

std::string json_text(const std::string& text) { return to_text(Document(text)); }
std::string json_text(double number) { return Document(number).dump(); }

}  // namespace profile

std::string profile_to_json(const ProfileReport& report) {
  return profile::report_to_json(report, report.timeline ? profile::to_text(profile::json_of(*report.timeline)) : "");
}

std::string difference_to_json(const ProfileDifference& difference) {
  return profile::to_text(profile::headed_json("treadle-profile-diff", difference), 2);
}

ProfileReport read_profile(std::string_view json, ProfileParts parts) {
  return profile::reading([&] {
    const bool all = parts == ProfileParts::all;
    const profile::Document document = profile::parse_json(all ? json : profile::without_timeline(json), /*throws=*/false);
    profile::check_header(document);
    ProfileReport report;
    profile::JsonReader reader{document};
    profile::fields(reader, report);
    if (all) reader.opt("timeline", report.timeline);
    profile::check_indices(report);
    return report;
  });
}

}  // namespace treadle
