// Prints a profile on the terminal.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "profile/analysis/device_rows.h"
#include "profile/writers/text_table.h"
#include "treadle/profile_report.h"

namespace treadle {
namespace profile {
namespace {

std::string megabytes(size_t bytes) { return fmt::format("{:.2f} MB", static_cast<double>(bytes) / 1e6); }
std::string percent(double part) { return fmt::format("{:.1f}", 100 * part); }

std::string number(const std::optional<double>& value) { return value ? fmt::format("{:.1f}", *value) : ""; }
std::string decimals(double value, int digits = 4) { return fmt::format("{:.{}f}", value, digits); }
std::string threads_text(int count) { return fmt::format("{} thread{}", count, count == 1 ? "" : "s"); }

// Returns the line below a shortened table, which says how many rows are missing; empty if none are.
std::string more(size_t count, const char* what, const std::string& details = {}) {
  if (count == 0) return {};
  return fmt::format("  ... and {} more {}{}{}: --top 0 shows all\n", count, what, count == 1 ? "" : "s", details);
}

// Returns how the peak of multiply-adds was found: "measured at rest, kept; spread 2.1 %".
std::string how_measured(const ProfileReport::Peaks& peaks) {
  if (!peaks.raised_by.empty()) return fmt::format("as node {} shows; less was measured", peaks.raised_by);
  return fmt::format("measured {}{}; spread {} %", peaks.busy ? "while other programs ran" : "at rest", peaks.kept ? " and kept" : "",
                     percent(peaks.spread));
}

std::string headline(const ProfileReport& report) {
  const ProfileReport::Runs& runs = report.runs;
  const char* const unnamed = report.phases.empty() ? "session" : "training step";
  std::string text =
      fmt::format("{}  ({} recorded runs after {} to warm up", report.model.empty() ? unnamed : report.model, runs.recorded, runs.warmup);
  if (report.environment.threads) text += ", " + threads_text(*report.environment.threads);
  text += ")\n";
  if (!report.assumed_extents.empty())
    text += fmt::format("  assumed    {}; --dim NAME=EXTENT or --shapes INPUT:EXTENTS sets others\n", report.assumed_extents);
  if (runs.ms) text += fmt::format("  run        median {:.3f} ms, p10 {:.3f}, p90 {:.3f}\n", runs.ms->median, runs.ms->p10, runs.ms->p90);
  if (runs.plain_ms) text += fmt::format("  unrecorded median {:.3f} ms\n", runs.plain_ms->median);
  if (runs.load_ms) text += fmt::format("  load       {:.2f} ms, first run {:.3f} ms\n", *runs.load_ms, runs.first_run_ms.value_or(0));
  if (const auto& peaks = report.peaks) {
    text += fmt::format("  machine    {}; {} reach{} {:.0f} GFLOP/s (float32)", report.environment.cpu, threads_text(peaks->threads),
                        peaks->threads == 1 ? "es" : "", peaks->gflops);
    if (!peaks->bandwidth.empty())
      text += fmt::format(", {:.0f} GB/s in caches, {:.0f} GB/s in memory", peaks->bandwidth.front().gb_per_s,
                          peaks->bandwidth.back().gb_per_s);
    text += fmt::format(" ({})\n", how_measured(*peaks));
  }
  for (const ProfileReport::DevicePeaks& peaks : report.device_peaks) {
    text += fmt::format("  device     {} reaches {:.0f} GFLOP/s (float32)", peaks.device, peaks.gflops);
    if (!peaks.bandwidth.empty()) text += fmt::format(", {:.0f} GB/s in memory", peaks.bandwidth.back().gb_per_s);
    text += "\n";
  }
  for (const std::string& row : report.timeline ? report.timeline->threads : std::vector<std::string>())
    if (row.ends_with(kTimesOfLaunches)) text += fmt::format("  device     {}: the device does not tell its own\n", row);
  if (const auto& cost = report.profiler) {
    text += fmt::format("  profiler   {:.0f} ns an event, {:.0f} events a run", cost->ns_per_event, cost->events_per_run);
    if (cost->slowdown)
      text += *cost->slowdown ? fmt::format(", {:+.1f} % on the run", 100 * **cost->slowdown)
                              : ", no difference from unrecorded runs beyond the noise";
    text += fmt::format(", {} lost\n", cost->events_lost);
  }
  return text;
}

std::string node_table(const ProfileReport& report, const ProfileTableOptions& options) {
  TextTable table({{"node", false, 36},
                   {"operator", false, 22},
                   {"kernel", false, 18},
                   {"shapes", false, 44},
                   {"ms", true},
                   {"+-", true},
                   {"%", true},
                   {"GFLOP/s", true},
                   {"GB/s", true},
                   {"% of peak", true}});
  const std::vector<size_t> order = sorted_nodes(report.nodes, options.sort);
  const size_t shown = options.top > 0 ? std::min(order.size(), static_cast<size_t>(options.top)) : order.size();
  double rest = 0;
  std::set<std::string> above_peak;
  for (size_t k = 0; k < order.size(); ++k) {
    const NodeReport& node = report.nodes[order[k]];
    if (k >= shown) {
      rest += node.share.value_or(0);
      continue;
    }
    if (!node.above_peak.empty()) above_peak.insert(node.above_peak);
    table.add({node.name, node.op_type, node.forms.empty() ? node.kernel : node.kernel + " " + node.forms, shapes_of(node),
               node.ms ? decimals(node.ms->median) : "", node.ms ? decimals((node.ms->p90 - node.ms->p10) / 2) : "",
               node.share ? percent(*node.share) : "", number(node.gflops), number(node.gb_per_s),
               node.of_peak ? fmt::format("{:.0f} {}", 100 * *node.of_peak, node.bound) : ""});
  }
  std::string text = "\nnodes by " + options.sort + "  (ms: median, +-: half of p10 to p90)\n" + table.to_text();
  if (shown < order.size())
    text += fmt::format("  ... and {} more nodes, {:.1f} % of the run: --top 0 shows all\n", order.size() - shown, 100 * rest);
  for (const std::string& why : above_peak) text += fmt::format("  above 100 %: {}\n", why);
  return text;
}

// Returns a table of the phases within kernels, for the nodes that the table of nodes shows.
std::string kernel_phase_table(const ProfileReport& report, const ProfileTableOptions& options) {
  TextTable table({{"node", false, 36}, {"phase"}, {"calls", true}, {"ms", true}, {"%", true}});
  bool any = false;
  size_t seen = 0, left_out = 0;
  for (size_t index : sorted_nodes(report.nodes, options.sort)) {
    const NodeReport& node = report.nodes[index];
    if (options.top > 0 && seen++ >= static_cast<size_t>(options.top)) {
      left_out += node.kernel_phases.empty() ? 0 : 1;
      continue;
    }
    std::string name = node.name;
    for (const KernelPhaseReport& phase : node.kernel_phases) {
      table.add({name, phase.name, fmt::format("{:g}", phase.calls), decimals(phase.ms.median), percent(phase.share)});
      name.clear();
      any = true;
    }
  }
  if (!any && left_out == 0) return {};
  return "\nwithin kernels  (calls of a run; ms: median, all threads together; %: of the node's phases)\n" + table.to_text() +
         more(left_out, "node");
}

std::string operator_table(const ProfileReport& report, const ProfileTableOptions& options) {
  constexpr size_t kMostOperators = 12;
  TextTable table({{"operator", false, 30}, {"nodes", true}, {"ms", true}, {"%", true}, {"GFLOP/s", true}});
  size_t left_out = 0;
  double rest = 0;
  for (size_t i = 0; i < report.operators.size(); ++i) {
    const ProfileReport::Operator& op = report.operators[i];
    if (options.top > 0 && i >= kMostOperators)
      ++left_out, rest += op.share;
    else
      table.add({op.op, std::to_string(op.nodes), decimals(op.ms), percent(op.share), number(op.gflops)});
  }
  return "\noperators\n" + table.to_text() + more(left_out, "operator", fmt::format(", {:.1f} % of the run", 100 * rest));
}

std::string phase_table(const ProfileReport& report) {
  if (report.phases.empty()) return {};
  TextTable table({{"phase"}, {"nodes", true}, {"ms", true}, {"%", true}});
  for (const ProfileReport::Phase& phase : report.phases)
    table.add({phase.name, std::to_string(phase.nodes), decimals(phase.ms), percent(phase.share)});
  return "\n" + table.to_text();
}

// Adds rows for phases of loading, with nested phases indented. Phases that took less than `least_ms` are summed in one row.
void add_phases(const std::vector<ProfileReport::Load>& load, int parent, double least_ms, const std::string& indent, TextTable& table) {
  double rest_ms = 0;
  for (size_t i = 0; i < load.size(); ++i) {
    const ProfileReport::Load& phase = load[i];
    if (phase.parent != parent) continue;
    if (phase.ms < least_ms) {
      rest_ms += phase.ms;
      continue;
    }
    table.add({indent + phase.name, std::to_string(phase.calls), decimals(phase.ms, 3)});
    add_phases(load, static_cast<int>(i), least_ms, indent + "  ", table);
  }
  if (rest_ms >= least_ms) table.add({indent + "(others)", "", decimals(rest_ms, 3)});
}

std::string load_table(const ProfileReport& report) {
  if (report.load.empty()) return {};
  double all_ms = 0;
  for (const ProfileReport::Load& phase : report.load) all_ms += phase.parent >= 0 ? 0 : phase.ms;
  TextTable table({{"loading", false, 50}, {"times", true}, {"ms", true}});
  add_phases(report.load, -1, all_ms / 100, "", table);
  return "\n" + table.to_text();
}

// Adds rows for ranges, with nested ranges indented. Python calls that took less than `least_ms` are omitted.
void add_ranges(const std::vector<ProfileReport::Range>& ranges, int parent, double least_ms, const std::string& indent, TextTable& table,
                size_t& num_added) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    const ProfileReport::Range& range = ranges[i];
    if (range.parent != parent || (range.python && range.total_ms < least_ms)) continue;
    ++num_added;
    table.add({indent + range.name, std::to_string(range.calls), decimals(range.ms.median), decimals(range.total_ms, 3),
               decimals(range.self_ms, 3), decimals(range.runs_ms, 3)});
    add_ranges(ranges, static_cast<int>(i), least_ms, indent + "  ", table, num_added);
  }
}

std::string range_table(const ProfileReport& report) {
  if (report.ranges.empty()) return {};
  TextTable table({{"range", false, 50}, {"calls", true}, {"ms", true}, {"all ms", true}, {"own ms", true}, {"runs ms", true}});
  double all_ms = 0;
  for (const ProfileReport::Range& range : report.ranges) all_ms += range.parent >= 0 ? 0 : range.total_ms;
  size_t num_added = 0;
  add_ranges(report.ranges, -1, all_ms / 100, "", table, num_added);
  const size_t left_out = report.ranges.size() - num_added;
  return "\nranges of the program  (ms: median of a call; own: without the ranges in it; runs: recorded runs in it)\n" + table.to_text() +
         (left_out > 0 ? fmt::format("  ... and {} calls of Python with less than 1 % each, or within such a one\n", left_out) : "");
}

// Returns a table of the program's marks, grouped by name. Names are in the order of their first marks.
std::string mark_table(const ProfileReport& report, int top) {
  if (!report.marks) return {};
  struct Mark {
    size_t times = 0;
    double first_ms = 0, last_ms = 0;
  };
  const ProfileReport::Marks& marks = *report.marks;
  std::map<std::string, Mark> by_name;
  std::vector<std::string> order;
  for (size_t i = 0; i < marks.name.size(); ++i) {
    const double ms = marks.ms[i];
    auto [found, is_new] = by_name.try_emplace(marks.name[i], Mark{0, ms, ms});
    if (is_new) order.push_back(found->first);
    ++found->second.times, found->second.last_ms = ms;
  }
  TextTable table({{"mark", false, 50}, {"times", true}, {"first at ms", true}, {"last at ms", true}});
  const size_t shown = top > 0 ? std::min(order.size(), static_cast<size_t>(top)) : order.size();
  for (size_t i = 0; i < shown; ++i) {
    const Mark& mark = by_name.at(order[i]);
    table.add({order[i], std::to_string(mark.times), decimals(mark.first_ms, 3), decimals(mark.last_ms, 3)});
  }
  std::string text = "\nmarks of the program  (ms since the profile began)\n" + table.to_text();
  text += more(order.size() - shown, "name");
  if (const size_t shown_marks = marks.name.size(); marks.events > static_cast<int64_t>(shown_marks))
    text += fmt::format("  these are the first {} of {} marks\n", shown_marks, marks.events);
  return text;
}

std::string where_table(const ProfileReport& report) {
  TextTable table({{"where a run went"}, {"ms", true}, {"%", true}});
  double ms = 0, share = 0;
  for (const ProfileReport::Part& part : report.where) {
    ms += part.ms;
    share += part.share;
    table.add({part.title, decimals(part.ms), percent(part.share)});
  }
  table.add({"together", decimals(ms), percent(share)});
  std::string text = "\n" + table.to_text();
  if (const auto& path = report.critical_path)
    text += fmt::format(
        "  critical path: {} of {} nodes, {:.4f} of their {:.4f} ms; with nodes at once a run may be {:.0f} % shorter at best\n",
        path->nodes.size(), report.memory ? report.memory->steps.size() : 0, path->ms, path->all_nodes_ms,
        path->all_nodes_ms > 0 ? 100 * (1 - path->ms / path->all_nodes_ms) : 0.0);
  if (report.waited_ms)
    text += fmt::format("  nodes whose inputs were there waited {:.4f} ms for their turn, all together\n", *report.waited_ms);
  return text;
}

std::string pool_table(const ProfileReport& report) {
  if (report.pool.empty()) return {};
  TextTable table({{"threads during runs", false, 40}, {"running", true}, {"no ready work", true}, {"barrier", true}, {"asleep", true}});
  for (const ProfileReport::PoolThread& thread : report.pool) {
    std::vector<std::string> cells{thread.name + (thread.calls ? ", calls runs" : "")};
    for (double part : thread.states) cells.push_back(percent(part));
    table.add(std::move(cells));
  }
  return "\n" + table.to_text();
}

std::string memory_table(const ProfileReport& report) {
  if (!report.memory) return {};
  const MemorySection& memory = *report.memory;
  TextTable table({{"memory"}, {"now", true}, {"peak", true}});
  for (const MemorySection::Class& entry : memory.classes) table.add({entry.name, megabytes(entry.bytes), megabytes(entry.peak_bytes)});
  table.add({"all together", "", megabytes(memory.peak_bytes)});
  std::string text = "\n" + table.to_text();
  if (memory.arena_bytes > 0)
    text += fmt::format("  arena: {} planned, {} is the least possible, {} without sharing\n", megabytes(memory.arena_bytes),
                        megabytes(memory.arena_lower_bound_bytes), megabytes(memory.arena_sum_bytes));
  return text;
}

// Returns tables of the arena's contents at the node where it is fullest, and of its use at each node.
std::string arena_table(const ProfileReport& report, const ProfileTableOptions& options) {
  if (!report.memory || !report.memory->peak)
    return "\nno arena was planned: nothing ran, no value lies between nodes, or they ran on a device\n";
  const MemorySection& memory = *report.memory;
  const MemorySection::Peak& peak = *memory.peak;
  TextTable values({{"alive at " + peak.node, false, 60}, {"class"}, {"MB", true}, {"%", true}});
  const auto peak_bytes = static_cast<double>(peak.bytes);
  auto is_beyond = [&](size_t count) { return options.top > 0 && count >= static_cast<size_t>(options.top); };
  auto left_out = [&](size_t count) { return is_beyond(count) ? count - static_cast<size_t>(options.top) : 0; };
  size_t count = 0;
  double rest_bytes = 0;
  for (const HoldingReport& value : peak.values) {
    const auto bytes = static_cast<double>(value.bytes);
    if (is_beyond(count++))
      rest_bytes += bytes;
    else
      values.add({value.name, value.memory_class, decimals(bytes / 1e6, 3), percent(bytes / peak_bytes)});
  }
  std::vector<TextTable::Column> columns{{"node", false, 60}};
  for (const auto& [name, bytes] : memory.live) columns.push_back({name + " MB", true});
  TextTable steps(std::move(columns));
  for (size_t i = 0; i < memory.steps.size() && !is_beyond(i); ++i) {
    std::vector<std::string> cells{report.nodes[static_cast<size_t>(memory.steps[i])].name};
    for (const auto& [name, bytes] : memory.live) cells.push_back(decimals(static_cast<double>(bytes[i]) / 1e6, 3));
    steps.add(std::move(cells));
  }
  return fmt::format("\nmost of the arena is alive at step {} of {}: {}\n", peak.step + 1, memory.steps.size(), megabytes(peak.bytes)) +
         values.to_text() + more(left_out(peak.values.size()), "value", fmt::format(", {:.2f} MB", rest_bytes / 1e6)) +
         "\nalive over the run, by step\n" + steps.to_text() + more(left_out(memory.steps.size()), "step");
}

// Returns tables of the memory that was allocated during the profile, by class and by holder.
std::string measured_table(const ProfileReport& report, const ProfileTableOptions& options) {
  if (!report.memory || !report.memory->measured) return {};
  const MeasuredMemoryReport& measured = *report.memory->measured;
  const MeasuredMemoryReport::Peak& peak = measured.peak;
  TextTable classes({{"allocated"}, {"before MB", true}, {"at the peak MB", true}});
  for (const auto& [name, bytes] : peak.classes) {
    const auto before =
        std::find_if(measured.before.begin(), measured.before.end(), [&](const auto& entry) { return entry.first == name; });
    classes.add({name, decimals(before == measured.before.end() ? 0 : static_cast<double>(before->second) / 1e6, 3),
                 decimals(static_cast<double>(bytes) / 1e6, 3)});
  }
  TextTable holders({{"held at the peak", false, 60}, {"class"}, {"MB", true}});
  size_t count = 0, rest = 0;
  size_t rest_bytes = peak.more_holders_bytes;  // begins with holders that the report does not list
  for (const HoldingReport& holder : peak.holders) {
    if (options.top > 0 && count++ >= static_cast<size_t>(options.top))
      ++rest, rest_bytes += holder.bytes;
    else
      holders.add({holder.name.empty() ? "(not known by name)" : holder.name, holder.memory_class,
                   decimals(static_cast<double>(holder.bytes) / 1e6, 3)});
  }
  std::string text = fmt::format("\nallocated: {} at the peak, {:.3f} ms after the profile began ({} events)\n", megabytes(peak.bytes),
                                 peak.ms, measured.events) +
                     classes.to_text() + holders.to_text();
  if (rest + peak.more_holders > 0)
    text += fmt::format("  ... and {} more, {} together{}\n", rest + peak.more_holders, megabytes(rest_bytes),
                        rest > 0 ? ": --top 0 shows more" : "");
  if (const size_t arena = report.memory->arena_bytes; arena > 0 && report.memory->peak)
    text += fmt::format("  the planned arena has {}; {:.1f} % of it is not used even at its fullest step\n", megabytes(arena),
                        100 * (1 - static_cast<double>(report.memory->peak->bytes) / static_cast<double>(arena)));
  const size_t most = options.top > 0 ? std::min(static_cast<size_t>(options.top), measured.refused.size()) : measured.refused.size();
  for (size_t i = 0; i < most; ++i) {
    const MeasuredMemoryReport::Refusal& refusal = measured.refused[i];
    text += fmt::format("  out of memory after {:.3f} ms: {} bytes of {} for {}\n", refusal.ms, refusal.bytes, refusal.memory_class,
                        refusal.name.empty() ? "(not known)" : refusal.name);
  }
  return text + more(measured.refused.size() - most, "refusal");
}

std::string remedy_list(const ProfileReport& report) {
  if (!report.remedies) return {};
  constexpr size_t kMostShown = 3;
  std::string text = "\nwhat helps (tried on this machine)\n";
  size_t count = 0;
  for (const ProfileRemedy& remedy : *report.remedies) {
    text += fmt::format("  {}. {}: {:.0f} % less {}. {}\n     {}\n", ++count, remedy.title, 100 * remedy.effect, remedy.saves,
                        remedy.evidence, remedy.command);
    if (count == kMostShown) break;
  }
  if (const size_t rest = report.remedies->size() - count; rest > 0)
    text += fmt::format("  ... and {} with less effect: --json has them\n", rest);
  return count > 0 ? text : text + "  nothing that was tried makes a difference beyond the noise\n";
}

}  // namespace
}  // namespace profile

std::string profile_to_table(const ProfileReport& report, const ProfileTableOptions& options) {
  using namespace profile;
  return headline(report) + node_table(report, options) + kernel_phase_table(report, options) + operator_table(report, options) +
         phase_table(report) + range_table(report) + mark_table(report, options.top) + where_table(report) + pool_table(report) +
         load_table(report) + memory_table(report) + measured_table(report, options) +
         (options.memory ? arena_table(report, options) : "") + remedy_list(report);
}

}  // namespace treadle
