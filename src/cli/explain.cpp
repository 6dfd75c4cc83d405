// Implements the command `treadle explain`.
#include "cli/explain.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <set>
#include <span>

#include "cli/commands.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/model_totals.h"
#include "cli/numbers.h"
#include "cli/profile_output.h"
#include "cli/terminal.h"
#include "core/base/nearest.h"
#include "core/files/file.h"
#include "core/threads/thread_pool.h"
#include "passes/trace.h"
#include "profile/analysis/report_parts.h"
#include "profile/writers/explanation_page.h"
#include "profile/writers/text_table.h"
#include "session/model.h"
#include "treadle/error.h"
#include "treadle/profile_report.h"

namespace treadle::cli {
namespace {

using profile::Explanation;
using profile::NodeHistory;
using profile::PassChange;
using profile::PassReport;
using profile::ViewReport;

struct ExplainOptions {
  ExplainRequest request;
  std::string node, output;
  int top = 25;
  bool json = false;
};

// Plans a run with the inputs' shapes, without running a node, and estimates the time of each node.
ProfileReport planned_profile(Session& session, const ExplainRequest& a, const MachinePeaks& peaks) {
  Profile profile;
  const MadeFeeds feeds = make_feeds(session.inputs(), a.inputs);
  with_assumed_extents(feeds.assumed, a.inputs, [&] {
    const Profiler profiler = session.profiler({.passes = !session.model().impl().compiled});
    const PartialRun not_begun = session.partial_run(feeds.values);
    profile = profiler.profile();
  });
  ProfileReport report = report_profile(profile, {.model = a.name, .peaks = peaks, .assumed_extents = joined(feeds.assumed)});
  for (NodeReport& node : report.nodes) {
    if (!node.flops || !node.bytes || !node.device.empty()) continue;               // `peaks` are those of the host
    const bool peaks_hold = profile.float32 && profile::computes_in_float32(node);  // false: only the memory peak applies
    node.estimated_ms = peaks.bound_ns(peaks_hold ? *node.flops : 0, *node.bytes) / 1e6;
  }
  return report;
}

bool contains(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

// Returns why passes refused the node, and why passes refused the original nodes that it replaces. Leaves out the latter reasons for passes
// that made or changed the node.
std::vector<PassRefusal> refusals_of(const passes::PassTrace& trace, const NodeReport& node) {
  std::vector<passes::Refusal> refusals = trace.refusals(node.name);
  for (const std::string& source : node.sources)
    for (const passes::Refusal& refusal : trace.refusals(source))
      if (!contains(node.passes, refusal.pass) && std::find(refusals.begin(), refusals.end(), refusal) == refusals.end())
        refusals.push_back(refusal);
  std::vector<PassRefusal> list;
  for (const passes::Refusal& refusal : refusals) list.push_back({refusal.pass, refusal.reason});
  return list;
}

const char* word_of(passes::NodeChange::What what) {
  switch (what) {
    case passes::NodeChange::What::made: return "made";
    case passes::NodeChange::What::changed: return "changed";
    case passes::NodeChange::What::folded: return "folded";
    case passes::NodeChange::What::removed: break;
  }
  return "removed";
}

std::vector<PassReport> passes_of(const passes::PassTrace& trace) {
  std::vector<PassReport> list;
  for (const passes::PassStep& step : trace.steps()) {
    PassReport& report = list.emplace_back(PassReport{step.pass, step.nodes_before, step.nodes_after, step.elapsed_us, {}});
    for (const passes::NodeChange& change : step.changes)
      report.changes.push_back({word_of(change.what), change.op_type, change.name, change.sources, change.took});
  }
  return list;
}

std::vector<ViewReport> views_of(const passes::PassTrace& trace, const std::vector<NodeReport>& run) {
  std::vector<ViewReport> views;
  for (const passes::NodeChange& node : trace.result())
    if (std::none_of(run.begin(), run.end(), [&](const NodeReport& other) { return other.name == node.name; }))
      views.push_back({node.name, node.op_type, node.sources});
  return views;
}

// Describes a change, for example as "makes FusedMatMul dense1 of Gemm dense1, Relu relu1".
std::string change_text(const PassChange& change, bool in_full = false) {
  const std::string& what = change.what;
  const std::string of = change.op_type + " " + change.name;
  if (what == "removed") return "removes " + of;
  if (what == "folded") return "computes " + of + " ahead: its result is a constant";
  if (change.took.empty()) return (what == "made" ? "makes " : "changes ") + of;
  constexpr size_t kMostNamed = 6;  // names of nodes that are listed; a fused chain may have a hundred
  const size_t named = in_full || change.took.size() <= kMostNamed ? change.took.size() : kMostNamed;
  std::string took = fmt::format("{}", fmt::join(change.took.begin(), change.took.begin() + static_cast<std::ptrdiff_t>(named), ", "));
  if (named < change.took.size()) took += fmt::format(" and {} more nodes", change.took.size() - named);
  return (what == "made" ? "makes " + of + " of " : of + " takes over ") + took;
}

std::string passes_text(const Explanation& explanation) {
  if (explanation.passes.empty()) return "\nno passes: the file holds the optimised graph\n";
  TextTable table({"pass", "nodes", "us", "what it did"});
  for (const PassReport& step : explanation.passes) {
    constexpr size_t kMostShown = 3;
    std::string what;
    for (size_t i = 0; i < std::min(step.changes.size(), kMostShown); ++i) what += (i ? "; " : "") + change_text(step.changes[i]);
    if (step.changes.size() > kMostShown) what += fmt::format("; and {} more", step.changes.size() - kMostShown);
    table.add({step.pass, fmt::format("{} -> {}", step.nodes_before, step.nodes_after), std::to_string(step.elapsed_us), what});
  }
  return "\npasses, in order\n" + table.to_text(2);
}

std::string shapes_text(const std::vector<ProfiledOperand>& operands) {
  std::string text;
  for (const ProfiledOperand& operand : operands)
    if (!operand.constant) text += (text.empty() ? "" : ", ") + profile::shape_of(operand);
  return text;
}

std::string nodes_text(const std::vector<NodeReport>& nodes, int top) {
  TextTable table({"node", "operator", "kernel", "shapes", "MFLOP", "MB", "ms at least", "passes"});
  double sum = 0;
  size_t shown = 0, unknown = 0;
  const auto number = [](const std::optional<double>& value, double scale) {
    return value ? fmt::format("{:.3f}", *value * scale) : std::string();
  };
  for (const NodeReport& node : nodes) {
    sum += node.estimated_ms.value_or(0);
    unknown += node.estimated_ms ? 0 : 1;
    if (top > 0 && shown >= static_cast<size_t>(top)) continue;
    ++shown;
    table.add({node.name, node.op_type, node.kernel, shapes_text(node.inputs) + " -> " + shapes_text(node.outputs),
               number(node.flops, 1e-6), number(node.bytes, 1e-6), number(node.estimated_ms, 1),
               fmt::format("{}", fmt::join(node.passes, ", "))});
  }
  std::string text =
      "\nnodes as they run, in order  (ms at least: operations and bytes over the peaks of this machine)\n" + table.to_text(2);
  if (const size_t rest = nodes.size() - shown; rest > 0) text += fmt::format("  ... and {} more: --top 0 shows all\n", rest);
  return text + fmt::format("  together at least {:.4f} ms{}\n", sum,
                            unknown > 0 ? fmt::format(", without {} nodes of unknown cost", unknown) : "");
}

std::string memory_text(const MemorySection& memory) {
  const auto megabytes = [](size_t bytes) { return static_cast<double>(bytes) / 1e6; };
  std::string text = fmt::format(
      "\nmemory, as planned\n  weights {:.2f} MB, packed {:.2f} MB, arena {:.2f} MB ({:.2f} MB at least, {:.2f} MB without sharing)\n",
      megabytes(memory.weight_bytes), megabytes(memory.packed_bytes), megabytes(memory.arena_bytes),
      megabytes(memory.arena_lower_bound_bytes), megabytes(memory.arena_sum_bytes));
  if (!memory.peak) return text;
  const size_t num_steps = memory.steps.size();
  text += fmt::format("  most is alive at step {} of {}, {}: {:.3f} MB\n", memory.peak->step + 1, num_steps, memory.peak->node,
                      megabytes(memory.peak->bytes));
  // Number of bars in the chart. Each bar covers a range of steps, and shows the most bytes alive at any of them.
  constexpr size_t kBars = 60;
  static constexpr const char* kHeights[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::string bars;
  const size_t stride = num_steps / kBars + 1;
  for (size_t from = 0; from < num_steps; from += stride) {
    size_t most = 0;
    for (size_t i = from; i < std::min(from + stride, num_steps); ++i) {
      size_t sum = 0;
      for (const auto& [name, bytes] : memory.live) sum += bytes[i];
      most = std::max(most, sum);
    }
    bars += kHeights[static_cast<size_t>(static_cast<double>(most) / static_cast<double>(memory.peak->bytes) * 8 + 0.5)];
  }
  return text + "  over the steps  |" + bars + "|\n";
}

// Returns the names of all nodes, of the model and as they run.
std::vector<std::string> names_of(const Explanation& explanation) {
  std::set<std::string> names;
  auto add = [&](const auto& node) { names.insert(node.name), names.insert(node.sources.begin(), node.sources.end()); };
  for (const NodeReport& node : explanation.plan.nodes) add(node);
  for (const ViewReport& view : explanation.views) add(view);
  for (const PassReport& step : explanation.passes)
    for (const PassChange& change : step.changes) add(change);
  return {names.begin(), names.end()};
}

bool concerns(const PassChange& change, const std::string& name) {
  if (change.name == name || contains(change.sources, name)) return true;
  return std::any_of(change.took.begin(), change.took.end(), [&](const std::string& item) { return item.ends_with(" " + name); });
}

std::string assumed_line(const std::string& assumed) {
  return assumed.empty() ? assumed : "  dimensions that were not given: " + assumed + "\n";
}

std::string history_text(const NodeHistory& history) {
  std::string text = history.node + "\n" + assumed_line(history.assumed_extents);
  for (const NodeHistory::Step& step : history.steps) text += fmt::format("  {}: {}\n", step.pass, step.what);
  if (history.steps.empty()) text += "  no pass changed it\n";
  for (const NodeReport& node : history.runs_as) {
    text += fmt::format("  runs as {} {}", node.op_type, node.name);
    if (!node.kernel.empty()) text += fmt::format(" [{}]", node.kernel);
    if (node.estimated_ms) text += fmt::format(", at least {:.4f} ms", *node.estimated_ms);
    text += "\n";
    if (!node.sources.empty()) text += fmt::format("    stands for {}\n", fmt::join(node.sources, ", "));
    for (const ProfiledUnusedKernel& unused : node.unused_kernels)
      text += fmt::format("    kernel {} is not taken: {}\n", unused.name, unused.why);
    for (const PassRefusal& refusal : node.left_alone) text += fmt::format("    {} did no more: {}\n", refusal.pass, refusal.why);
  }
  for (const ViewReport& view : history.views)
    text += fmt::format("  {} {} needs no instruction: its result is a view, or known before a run\n", view.op_type, view.name);
  if (history.runs_as.empty() && history.views.empty()) text += "  does not run\n";
  return text;
}

std::string whole_text(const Explanation& explanation, int top) {
  const ProfileReport& plan = explanation.plan;
  std::string text = fmt::format("{}: {} nodes as read, {} as they run\n", plan.model, explanation.nodes_as_read, plan.nodes.size());
  text += assumed_line(plan.assumed_extents);
  return text + passes_text(explanation) + nodes_text(plan.nodes, top) + memory_text(plan.memory.value_or(MemorySection{}));
}

int explain(const ExplainOptions& a) {
  if (!a.output.empty()) check_explanation_file(a.output);
  check_target("--output", a.output);
  const Explanation explanation = explain_model(Model::load(a.request.name), a.request);
  if (!a.node.empty()) {
    const NodeHistory history = explain_node(explanation, a.node);
    if (a.json)
      show_json_text(profile::history_to_json(history));
    else
      show("{}\n", history_text(history));
    return 0;
  }
  if (!a.output.empty()) {
    const std::string text = explanation_file(a.output, explanation);
    AtomicFile file(a.output);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  }
  if (a.json)
    show_json_text(profile::explanation_to_json(explanation));
  else
    show_text(stdout, whole_text(explanation, a.top));
  if (!a.output.empty() && !a.json) show("\nwritten to {}\n", a.output);
  return 0;
}

}  // namespace

Explanation explain_model(const Model& model, const ExplainRequest& request) {
  passes::PassTrace trace;
  Session session = [&] {
    const passes::PassTrace::Scope scope(trace);
    return Session(model, request.session);
  }();
  const int asked = request.session.intra_op_num_threads;
  const MachinePeaks peaks = measure_machine_peaks(asked > 0 ? asked : ThreadPool::shared()->num_threads());
  Explanation explanation{.plan = planned_profile(session, request, peaks),
                          .nodes_as_read = static_cast<size_t>(totals_of(*model.impl().held_graph()).num_nodes()),
                          .passes = passes_of(trace),
                          .views = {}};
  explanation.plan.model = request.name;
  for (NodeReport& node : explanation.plan.nodes) node.left_alone = refusals_of(trace, node);
  explanation.views = views_of(trace, explanation.plan.nodes);
  return explanation;
}

NodeHistory explain_node(const Explanation& explanation, const std::string& name) {
  NodeHistory history{.node = name, .assumed_extents = explanation.plan.assumed_extents, .steps = {}, .runs_as = {}, .views = {}};
  for (const NodeReport& node : explanation.plan.nodes)
    if (node.name == name || contains(node.sources, name)) history.runs_as.push_back(node);
  for (const PassReport& step : explanation.passes)
    for (const PassChange& change : step.changes)
      if (concerns(change, name)) history.steps.push_back({step.pass, change_text(change, /*in_full=*/true)});
  for (const ViewReport& view : explanation.views)
    if (view.name == name || contains(view.sources, name)) history.views.push_back(view);
  if (history.runs_as.empty() && history.steps.empty() && history.views.empty())
    throw Error(ErrorCode::not_found, fmt::format("{}: no node \"{}\", neither of the model nor as it runs; is it {}?",
                                                  explanation.plan.model, name, nearest_names(name, names_of(explanation))));
  return history;
}

std::string explanation_text(const Explanation& explanation, int top) { return for_terminal(whole_text(explanation, top)); }
std::string node_history_text(const NodeHistory& history) { return for_terminal(history_text(history)); }
void check_explanation_file(std::string_view path) {
  if (!path.ends_with(".html") && !path.ends_with(".json"))
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: a name that ends in .html or .json is expected", path));
}
std::string explanation_file(std::string_view path, const Explanation& explanation) {
  check_explanation_file(path);
  return path.ends_with(".html") ? profile::explanation_to_html(explanation) : profile::explanation_to_json(explanation);
}

Command add_explain(CLI::App& app) {
  app.description("Say what the optimiser made of a model, what became of a node, and what a run needs, without running it");
  auto a = std::make_shared<ExplainOptions>();
  app.add_option("model", a->request.name, "ONNX file")->required();
  app.add_option("--node", a->node, "Say what became of this node of the model, and what the passes left alone behind it");
  add_input_options(app, a->request.inputs);
  add_session_options(app, a->request.session);
  app.add_option("--top", a->top, "Nodes to print; 0: all")->capture_default_str()->check(at_least(0));
  app.add_option("-o,--output", a->output, "Also write a page with the drawn graph (.html), or all of it (.json)")->excludes("--node");
  app.add_flag("--json", a->json, "Print JSON");
  app.footer("No node runs: times are estimates. `treadle profile` measures.\nExample: treadle explain model.onnx --node conv1");
  return [a, &app] {
    GivenOptions(app).need(!a->json && a->node.empty(), "the table: neither --json nor --node", {"--top"});
    return explain(*a);
  };
}

}  // namespace treadle::cli
