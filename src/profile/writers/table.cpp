// A profile for the terminal.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "profile/model/document.h"
#include "treadle/profile.h"

namespace treadle {
namespace profile {
namespace {

std::string megabytes(double bytes) { return fmt::format("{:.2f} MB", bytes / 1e6); }
std::string percent(double part) { return fmt::format("{:.1f}", 100 * part); }

std::string number(const Document& json, const char* field, const char* format = "{:.1f}") {
  return json.contains(field) ? fmt::format(fmt::runtime(format), json.at(field).get<double>()) : "";
}

std::string threads_text(const Document& count) { return fmt::format("{} thread{}", count.get<int>(), count == 1 ? "" : "s"); }

// Below a table that was cut.
std::string more(size_t count, const char* what, const std::string& details = {}) {
  if (count == 0) return {};
  return fmt::format("  ... and {} more {}{}{}: --top 0 shows all\n", count, what, count == 1 ? "" : "s", details);
}

std::string headline(const Document& document) {
  std::string text;
  const Document& runs = document.at("runs");
  const Document environment = document.value("environment", Document::object());
  const char* const unnamed = document.contains("phases") ? "training step" : "session";
  text += fmt::format("{}  ({} recorded runs after {} to warm up", document.value("model", unnamed), runs.value("recorded", 0),
                      runs.value("warmup", 0));
  if (environment.contains("threads")) text += ", " + threads_text(environment.at("threads"));
  text += ")\n";
  if (const std::string assumed = document.value("assumed_extents", ""); !assumed.empty())
    text += fmt::format("  assumed    {}; --dim NAME=EXTENT or --shapes INPUT:EXTENTS sets others\n", assumed);
  if (runs.contains("ms"))
    text += fmt::format("  run        median {:.3f} ms, p10 {:.3f}, p90 {:.3f}\n", runs.at("ms").at("median").get<double>(),
                        runs.at("ms").at("p10").get<double>(), runs.at("ms").at("p90").get<double>());
  if (runs.contains("plain_ms")) text += fmt::format("  unrecorded median {:.3f} ms\n", runs.at("plain_ms").at("median").get<double>());
  if (runs.contains("load_ms"))
    text += fmt::format("  load       {:.2f} ms, first run {:.3f} ms\n", runs.at("load_ms").get<double>(), runs.value("first_run_ms", 0.0));
  if (document.contains("peaks")) {
    const Document& peaks = document.at("peaks");
    text += fmt::format("  machine    {}; {} reach{} {:.0f} GFLOP/s (float32)", environment.value("cpu", ""),
                        threads_text(peaks.at("threads")), peaks.at("threads") == 1 ? "es" : "", peaks.at("gflops").get<double>());
    const Document& bandwidth = peaks.at("bandwidth");
    if (!bandwidth.empty())
      text += fmt::format(", {:.0f} GB/s in caches, {:.0f} GB/s in memory", bandwidth.front().at("gb_per_s").get<double>(),
                          bandwidth.back().at("gb_per_s").get<double>());
    text += "\n";
  }
  if (document.contains("profiler")) {
    const Document& cost = document.at("profiler");
    text += fmt::format("  profiler   {:.0f} ns an event, {:.0f} events a run", cost.value("ns_per_event", 0.0),
                        cost.value("events_per_run", 0.0));
    if (cost.contains("slowdown"))
      text += cost.at("slowdown").is_null() ? ", no difference from unrecorded runs beyond the noise"
                                            : fmt::format(", {:+.1f} % on the run", 100 * cost.at("slowdown").get<double>());
    text += fmt::format(", {} lost\n", cost.value("events_lost", 0));
  }
  return text;
}

std::string node_table(const Document& document, const ProfileTableOptions& options) {
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
  const std::vector<size_t> order = sorted_nodes(document, options.sort);
  const size_t shown = options.top > 0 ? std::min(order.size(), static_cast<size_t>(options.top)) : order.size();
  double rest = 0;
  bool above_peak = false;
  for (size_t k = 0; k < order.size(); ++k) {
    const Document& node = document.at("nodes").at(order[k]);
    if (k >= shown) {
      rest += node.value("share", 0.0);
      continue;
    }
    std::string kernel = node.value("kernel", "");
    if (node.contains("forms")) kernel += " " + node.at("forms").get<std::string>();
    above_peak = above_peak || (node.value("bound", "") == "compute" && node.value("of_peak", 0.0) > 1);
    const Document ms = node.value("ms", Document::object());
    const bool timed = ms.contains("median");
    table.add({node.value("name", ""), node.value("op", ""), kernel, shapes_of(node),
               timed ? fmt::format("{:.4f}", ms.at("median").get<double>()) : "",
               timed ? fmt::format("{:.4f}", (ms.at("p90").get<double>() - ms.at("p10").get<double>()) / 2) : "",
               node.contains("share") ? percent(node.at("share").get<double>()) : "", number(node, "gflops"), number(node, "gb_per_s"),
               node.contains("of_peak") ? fmt::format("{:.0f} {}", 100 * node.at("of_peak").get<double>(), node.value("bound", "")) : ""});
  }
  std::string text = "\nnodes by " + options.sort + "  (ms: median, +-: half of p10 to p90)\n" + table.to_text();
  if (shown < order.size())
    text += fmt::format("  ... and {} more nodes, {:.1f} % of the run: --top 0 shows all\n", order.size() - shown, 100 * rest);
  if (above_peak) text += "  above 100 %: the kernel needs fewer operations than the operator is counted with (Winograd: F(2,3), F(4,3))\n";
  return text;
}

// What the kernels of the nodes shown do.
std::string kernel_phase_table(const Document& document, const ProfileTableOptions& options) {
  TextTable table({{"node", false, 36}, {"phase"}, {"calls", true}, {"ms", true}, {"%", true}});
  bool any = false;
  size_t seen = 0, left_out = 0;
  for (size_t index : sorted_nodes(document, options.sort)) {
    const Document& node = document.at("nodes").at(index);
    const Document phases = node.value("kernel_phases", Document::array());
    if (options.top > 0 && seen++ >= static_cast<size_t>(options.top)) {
      left_out += phases.empty() ? 0 : 1;
      continue;
    }
    std::string name = node.value("name", "");
    for (const Document& phase : phases) {
      table.add({name, phase.at("phase"), fmt::format("{:g}", phase.at("calls").get<double>()),
                 fmt::format("{:.4f}", phase.at("ms").at("median").get<double>()), percent(phase.at("share").get<double>())});
      name.clear();
      any = true;
    }
  }
  if (!any && left_out == 0) return {};
  return "\nwithin kernels  (calls of a run; ms: median, all threads together; %: of the node's phases)\n" + table.to_text() +
         more(left_out, "node");
}

std::string operator_table(const Document& document, const ProfileTableOptions& options) {
  constexpr size_t kMostOperators = 12;
  TextTable table({{"operator", false, 30}, {"nodes", true}, {"ms", true}, {"%", true}, {"GFLOP/s", true}});
  size_t left_out = 0;
  double rest = 0;
  const Document operators = document.value("operators", Document::array());
  for (size_t i = 0; i < operators.size(); ++i) {
    const Document& op = operators.at(i);
    if (options.top > 0 && i >= kMostOperators) {
      ++left_out, rest += op.value("share", 0.0);
      continue;
    }
    table.add({op.value("op", ""), std::to_string(op.value("nodes", 0)), fmt::format("{:.4f}", op.value("ms", 0.0)),
               percent(op.value("share", 0.0)), number(op, "gflops")});
  }
  return "\noperators\n" + table.to_text() + more(left_out, "operator", fmt::format(", {:.1f} % of the run", 100 * rest));
}

std::string phase_table(const Document& document) {
  if (!document.contains("phases")) return {};
  TextTable table({{"phase"}, {"nodes", true}, {"ms", true}, {"%", true}});
  for (const Document& phase : document.at("phases"))
    table.add({phase.at("phase"), std::to_string(phase.at("nodes").get<int>()), fmt::format("{:.4f}", phase.at("ms").get<double>()),
               percent(phase.at("share").get<double>())});
  return "\n" + table.to_text();
}

// Phases within phases are indented; of passes that took less than a hundredth of it all, the sum.
void add_phases(const Document& load, int parent, double least_ms, const std::string& indent, TextTable& table) {
  double rest_ms = 0;
  for (size_t i = 0; i < load.size(); ++i) {
    const Document& phase = load.at(i);
    if (phase.value("parent", -1) != parent) continue;
    const double ms = phase.at("ms");
    if (ms < least_ms) {
      rest_ms += ms;
      continue;
    }
    table.add({indent + phase.at("name").get<std::string>(), std::to_string(phase.at("calls").get<int64_t>()), fmt::format("{:.3f}", ms)});
    add_phases(load, static_cast<int>(i), least_ms, indent + "  ", table);
  }
  if (rest_ms >= least_ms) table.add({indent + "(others)", "", fmt::format("{:.3f}", rest_ms)});
}

std::string load_table(const Document& document) {
  if (!document.contains("load")) return {};
  double all_ms = 0;
  for (const Document& phase : document.at("load")) all_ms += phase.contains("parent") ? 0 : phase.at("ms").get<double>();
  TextTable table({{"loading", false, 50}, {"times", true}, {"ms", true}});
  add_phases(document.at("load"), -1, all_ms / 100, "", table);
  return "\n" + table.to_text();
}

// Ranges within ranges are indented. Of what Python called, what took less than a hundredth of it all is left out.
void add_ranges(const Document& ranges, int parent, double least_ms, const std::string& indent, TextTable& table, size_t& num_added) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Document& range = ranges.at(i);
    if (range.value("parent", -1) != parent || (range.value("python", false) && range.at("total_ms").get<double>() < least_ms)) continue;
    ++num_added;
    table.add({indent + range.at("name").get<std::string>(), std::to_string(range.at("calls").get<int64_t>()),
               fmt::format("{:.4f}", range.at("ms").at("median").get<double>()), fmt::format("{:.3f}", range.at("total_ms").get<double>()),
               fmt::format("{:.3f}", range.at("self_ms").get<double>()), fmt::format("{:.3f}", range.at("runs_ms").get<double>())});
    add_ranges(ranges, static_cast<int>(i), least_ms, indent + "  ", table, num_added);
  }
}

std::string range_table(const Document& document) {
  if (!document.contains("ranges")) return {};
  TextTable table({{"range", false, 50}, {"calls", true}, {"ms", true}, {"all ms", true}, {"own ms", true}, {"runs ms", true}});
  double all_ms = 0;
  for (const Document& range : document.at("ranges")) all_ms += range.contains("parent") ? 0 : range.at("total_ms").get<double>();
  size_t num_added = 0;
  add_ranges(document.at("ranges"), -1, all_ms / 100, "", table, num_added);
  const size_t left_out = document.at("ranges").size() - num_added;
  return "\nranges of the program  (ms: median of a call; own: without the ranges in it; runs: recorded runs in it)\n" + table.to_text() +
         (left_out > 0 ? fmt::format("  ... and {} calls of Python with less than 1 % each, or within such a one\n", left_out) : "");
}

// By name, in the order of their first.
std::string mark_table(const Document& document, int top) {
  if (!document.contains("marks")) return {};
  struct Mark {
    size_t times = 0;
    double first_ms = 0, last_ms = 0;
  };
  const Document &marks = document.at("marks"), &names = marks.at("name");
  std::map<std::string, Mark> by_name;
  std::vector<std::string> order;
  for (size_t i = 0; i < names.size(); ++i) {
    const double ms = marks.at("ms").at(i);
    auto [found, is_new] = by_name.try_emplace(names[i].get<std::string>(), Mark{0, ms, ms});
    if (is_new) order.push_back(found->first);
    ++found->second.times, found->second.last_ms = ms;
  }
  TextTable table({{"mark", false, 50}, {"times", true}, {"first at ms", true}, {"last at ms", true}});
  const size_t shown = top > 0 ? std::min(order.size(), static_cast<size_t>(top)) : order.size();
  for (size_t i = 0; i < shown; ++i) {
    const Mark& mark = by_name.at(order[i]);
    table.add({order[i], std::to_string(mark.times), fmt::format("{:.3f}", mark.first_ms), fmt::format("{:.3f}", mark.last_ms)});
  }
  std::string text = "\nmarks of the program  (ms since the profile began)\n" + table.to_text();
  text += more(order.size() - shown, "name");
  if (const size_t all = marks.value("events", names.size()); all > names.size())
    text += fmt::format("  these are the first {} of {} marks\n", names.size(), all);
  return text;
}

std::string where_table(const Document& document) {
  TextTable table({{"where a run went"}, {"ms", true}, {"%", true}});
  double ms = 0, share = 0;
  for (const Document& part : document.value("where", Document::array())) {
    ms += part.at("ms").get<double>();
    share += part.at("share").get<double>();
    table.add({part.at("title"), fmt::format("{:.4f}", part.at("ms").get<double>()), percent(part.at("share").get<double>())});
  }
  table.add({"together", fmt::format("{:.4f}", ms), percent(share)});
  std::string text = "\n" + table.to_text();
  if (document.contains("critical_path")) {
    const Document& path = document.at("critical_path");
    const double path_ms = path.at("ms"), all_ms = path.at("all_nodes_ms");
    text += fmt::format(
        "  critical path: {} of {} nodes, {:.4f} of their {:.4f} ms; with nodes at once a run may be {:.0f} % shorter at best\n",
        path.at("nodes").size(), document.value("memory", Document::object()).value("steps", Document::array()).size(), path_ms, all_ms,
        all_ms > 0 ? 100 * (1 - path_ms / all_ms) : 0.0);
  }
  if (document.contains("waited_ms"))
    text += fmt::format("  nodes whose inputs were there waited {:.4f} ms for their turn, all together\n",
                        document.at("waited_ms").get<double>());
  return text;
}

std::string pool_table(const Document& document) {
  if (!document.contains("pool")) return {};
  TextTable table({{"threads during runs", false, 40}, {"running", true}, {"no ready work", true}, {"barrier", true}, {"asleep", true}});
  for (const Document& thread : document.at("pool")) {
    std::vector<std::string> cells{thread.at("name").get<std::string>() + (thread.at("calls").get<bool>() ? ", calls runs" : "")};
    for (const char* state : {"running", "no ready work", "barrier", "asleep"})
      cells.push_back(percent(thread.at("states").at(state).get<double>()));
    table.add(std::move(cells));
  }
  return "\n" + table.to_text();
}

std::string memory_table(const Document& document) {
  const Document memory = document.value("memory", Document::object());
  if (!memory.contains("classes")) return {};
  TextTable table({{"memory"}, {"now", true}, {"peak", true}});
  for (const Document& entry : memory.at("classes"))
    table.add({entry.at("class"), megabytes(entry.at("bytes").get<double>()), megabytes(entry.at("peak_bytes").get<double>())});
  table.add({"all together", "", megabytes(memory.value("peak_bytes", 0.0))});
  std::string text = "\n" + table.to_text();
  if (memory.value("arena_bytes", 0.0) > 0)
    text += fmt::format("  arena: {} planned, {} is the least possible, {} without sharing\n",
                        megabytes(memory.at("arena_bytes").get<double>()), megabytes(memory.at("arena_lower_bound_bytes").get<double>()),
                        megabytes(memory.at("arena_sum_bytes").get<double>()));
  return text;
}

// What the arena holds at the node where most of it is alive, and at each node.
std::string arena_table(const Document& document, const ProfileTableOptions& options) {
  const Document memory = document.value("memory", Document::object());
  if (!memory.contains("peak")) return "\nno arena was planned: nothing ran, no value lies between nodes, or they ran on a device\n";
  const Document& peak = memory.at("peak");
  TextTable values({{"alive at " + peak.at("node").get<std::string>(), false, 60}, {"class"}, {"MB", true}, {"%", true}});
  const double peak_bytes = peak.at("bytes");
  auto is_beyond = [&](size_t count) { return options.top > 0 && count >= static_cast<size_t>(options.top); };
  auto left_out = [&](size_t count) { return is_beyond(count) ? count - static_cast<size_t>(options.top) : 0; };
  size_t count = 0;
  double rest_bytes = 0;
  for (const Document& value : peak.at("values")) {
    const double bytes = value.at("bytes");
    if (is_beyond(count++)) {
      rest_bytes += bytes;
      continue;
    }
    values.add({value.at("name"), value.at("class"), fmt::format("{:.3f}", bytes / 1e6), percent(bytes / peak_bytes)});
  }
  const Document &order = memory.at("steps"), &live = memory.at("live");
  std::vector<TextTable::Column> columns{{"node", false, 60}};
  for (const auto& [name, bytes] : live.items()) columns.push_back({name + " MB", true});
  TextTable steps(std::move(columns));
  for (size_t i = 0; i < order.size() && !is_beyond(i); ++i) {
    std::vector<std::string> cells{document.at("nodes").at(order[i].get<size_t>()).at("name")};
    for (const auto& [name, bytes] : live.items()) cells.push_back(fmt::format("{:.3f}", bytes.at(i).get<double>() / 1e6));
    steps.add(std::move(cells));
  }
  return fmt::format("\nmost of the arena is alive at step {} of {}: {}\n", peak.at("step").get<int>() + 1, order.size(),
                     megabytes(peak_bytes)) +
         values.to_text() + more(left_out(peak.at("values").size()), "value", ", " + megabytes(rest_bytes)) +
         "\nalive over the run, by step\n" + steps.to_text() + more(left_out(order.size()), "step");
}

// What was really allocated while the profile was taken.
std::string measured_table(const Document& document, const ProfileTableOptions& options) {
  const Document memory = document.value("memory", Document::object());
  if (!memory.contains("measured")) return {};
  const Document &measured = memory.at("measured"), &peak = measured.at("peak");
  TextTable classes({{"allocated"}, {"before MB", true}, {"at the peak MB", true}});
  for (const auto& [name, bytes] : peak.at("classes").items())
    classes.add(
        {name, fmt::format("{:.3f}", measured.at("before").value(name, 0.0) / 1e6), fmt::format("{:.3f}", bytes.get<double>() / 1e6)});
  TextTable holders({{"held at the peak", false, 60}, {"class"}, {"MB", true}});
  size_t count = 0, rest = 0;
  double rest_bytes = 0;
  for (const Document& holder : peak.at("holders")) {
    if (options.top > 0 && count++ >= static_cast<size_t>(options.top)) {
      ++rest, rest_bytes += holder.at("bytes").get<double>();
      continue;
    }
    holders.add(
        {holder.value("name", "(not known by name)"), holder.at("class"), fmt::format("{:.3f}", holder.at("bytes").get<double>() / 1e6)});
  }
  // A profile has the largest ones only.
  const size_t beyond = peak.value("more_holders", size_t{0});
  rest_bytes += peak.value("more_holders_bytes", 0.0);
  std::string text =
      fmt::format("\nallocated: {} at the peak, {:.3f} ms after the profile began ({} events)\n", megabytes(peak.at("bytes").get<double>()),
                  peak.at("ms").get<double>(), measured.at("events").get<int64_t>()) +
      classes.to_text() + holders.to_text();
  if (rest + beyond > 0)
    text += fmt::format("  ... and {} more, {} together{}\n", rest + beyond, megabytes(rest_bytes), rest > 0 ? ": --top 0 shows more" : "");
  const double arena = memory.value("arena_bytes", 0.0);
  if (arena > 0 && memory.contains("peak"))
    text += fmt::format("  the planned arena has {}; {:.1f} % of it is not used even at its fullest step\n", megabytes(arena),
                        100 * (1 - memory.at("peak").at("bytes").get<double>() / arena));
  const Document& refused = measured.at("refused");
  const size_t most = options.top > 0 ? static_cast<size_t>(options.top) : refused.size();
  for (size_t i = 0; i < std::min(most, refused.size()); ++i) {
    const Document& refusal = refused.at(i);
    text += fmt::format("  out of memory after {:.3f} ms: {} bytes of {} for {}\n", refusal.at("ms").get<double>(),
                        refusal.at("bytes").get<int64_t>(), refusal.at("class").get<std::string>(), refusal.value("name", "(not known)"));
  }
  return text + more(refused.size() - std::min(most, refused.size()), "refusal");
}

std::string remedy_list(const Document& document) {
  if (!document.contains("remedies")) return {};
  std::string text = "\nwhat helps (tried on this machine)\n";
  int count = 0;
  for (const Document& remedy : document.at("remedies")) {
    text += fmt::format("  {}. {}: {:.0f} % less {}. {}\n     {}\n", ++count, remedy.value("title", ""), 100 * remedy.value("effect", 0.0),
                        remedy.value("saves", ""), remedy.value("evidence", ""), remedy.value("command", ""));
    if (count == 3) break;
  }
  if (const size_t rest = document.at("remedies").size() - static_cast<size_t>(count); rest > 0)
    text += fmt::format("  ... and {} with less effect: --json has them\n", rest);
  return count > 0 ? text : text + "  nothing that was tried makes a difference beyond the noise\n";
}

}  // namespace
}  // namespace profile

std::string profile_to_table(std::string_view json, const ProfileTableOptions& options) {
  using namespace profile;
  return reading([&] {
    const Document document = parse_document(json);
    return headline(document) + node_table(document, options) + kernel_phase_table(document, options) + operator_table(document, options) +
           phase_table(document) + range_table(document) + mark_table(document, options.top) + where_table(document) +
           pool_table(document) + load_table(document) + memory_table(document) + measured_table(document, options) +
           (options.memory ? arena_table(document, options) : "") + remedy_list(document);
  });
}

}  // namespace treadle
