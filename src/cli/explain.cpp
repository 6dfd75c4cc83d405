// treadle explain
#include "cli/explain.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/commands.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/model_totals.h"
#include "cli/profile_output.h"
#include "cli/provenance.h"
#include "cli/terminal.h"
#include "core/file.h"
#include "core/thread_pool.h"
#include "profile/analysis/report_parts.h"
#include "session/model.h"
#include "treadle/error.h"
#include "treadle/profile.h"

namespace treadle::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ExplainOptions {
  ExplainRequest request;
  std::string node, output;
  int top = 25;
  bool json = false;
};

// The session is planned for the inputs' extents; no node runs.
Json planned_profile(Session& session, const ExplainRequest& a, const MachinePeaks& peaks) {
  Profile profile;
  const MadeFeeds feeds = make_feeds(session.inputs(), a.inputs);
  with_assumed_extents(feeds.assumed, a.inputs, [&] {
    const Profiler profiler = session.profiler({.passes = !session.model().impl().compiled});
    const PartialRun not_begun = session.partial_run(feeds.values);
    profile = profiler.profile();
  });
  Json json = Json::parse(profile_to_json(profile, {.model = a.name, .peaks = peaks, .assumed_extents = joined(feeds.assumed)}));
  for (size_t i = 0; i < profile.nodes.size(); ++i) {
    const ProfiledNode& node = profile.nodes[i];
    if (!node.flops || !node.bytes) continue;
    const bool peaks_hold = profile.float32 && profile::computes_in_float32(node);  // else only that of memory does
    json["nodes"][i]["estimated_ms"] = peaks.bound_ns(peaks_hold ? *node.flops : 0, *node.bytes) / 1e6;
  }
  return json;
}

bool contains(const Json& list, const std::string& text) { return std::find(list.begin(), list.end(), text) != list.end(); }

// Also what passes said of the nodes that it stands for, unless they changed their minds.
std::vector<passes::Refusal> refusals_of(const passes::PassTrace& trace, const Json& node) {
  std::vector<passes::Refusal> refusals = trace.refusals(node.at("name"));
  for (const Json& source : node.value("sources", Json::array()))
    for (const passes::Refusal& refusal : trace.refusals(source))
      if (!contains(node.value("passes", Json::array()), refusal.pass) &&
          std::find(refusals.begin(), refusals.end(), refusal) == refusals.end())
        refusals.push_back(refusal);
  return refusals;
}

// Nodes of the optimised graph that no instruction computes: their results are their inputs' bytes.
Json views_json(const passes::PassTrace& trace, const Json& run) {
  Json views = Json::array();
  for (const passes::NodeChange& node : trace.result())
    if (std::none_of(run.begin(), run.end(), [&](const Json& other) { return other.at("name") == node.name; }))
      views.push_back({{"name", node.name}, {"op", node.op_type}, {"sources", node.sources}});
  return views;
}

Json explain_document(const Model& model, const ExplainRequest& a) {
  passes::PassTrace trace;
  Session session = [&] {
    const passes::PassTrace::Scope scope(trace);
    return Session(model, a.session);
  }();
  const int threads = a.session.intra_op_num_threads > 0 ? a.session.intra_op_num_threads : ThreadPool::shared()->num_threads();
  const MachinePeaks peaks = measure_machine_peaks(threads);
  Json planned = planned_profile(session, a, peaks);
  Json json{
      {"format", "treadle-explain"}, {"version", 1}, {"model", a.name}, {"nodes_as_read", totals_of(*model.impl().import()).num_nodes()}};
  json["assumed_extents"] = planned.at("assumed_extents");
  json["environment"] = planned.at("environment");
  json["peaks"] = planned.at("peaks");
  json["passes"] = passes_json(trace);
  for (Json& node : planned["nodes"])
    for (const passes::Refusal& refusal : refusals_of(trace, node))
      node["left_alone"].push_back({{"pass", refusal.pass}, {"why", refusal.reason}});
  json["views"] = views_json(trace, planned["nodes"]);
  json["nodes"] = std::move(planned["nodes"]);
  json["memory"] = std::move(planned["memory"]);
  return json;
}

std::string joined(const Json& list, const char* separator = ", ") {
  std::string text;
  for (const Json& item : list) text += (text.empty() ? "" : separator) + item.get<std::string>();
  return text;
}

// Of the nodes that one took over, the first: a chain may be of a hundred.
std::string taken_text(const Json& took) {
  constexpr size_t kMostNamed = 6;
  if (took.size() <= kMostNamed) return joined(took);
  Json named = Json::array();
  for (size_t i = 0; i < kMostNamed; ++i) named.push_back(took[i]);
  return fmt::format("{} and {} more nodes", joined(named), took.size() - kMostNamed);
}

// "makes FusedMatMul dense1 of Gemm dense1, Relu relu1"
std::string change_text(const Json& change, bool in_full = false) {
  const std::string what = change.at("what"), of = change.at("op").get<std::string>() + " " + change.at("name").get<std::string>();
  if (what == "removed") return "removes " + of;
  if (what == "folded") return "computes " + of + " ahead: its result is a constant";
  if (change.contains("took"))
    return (what == "made" ? "makes " + of + " of " : of + " takes over ") +
           (in_full ? joined(change.at("took")) : taken_text(change.at("took")));
  return (what == "made" ? "makes " : "changes ") + of;
}

std::string passes_text(const Json& document) {
  TextTable table({"pass", "nodes", "us", "what it did"});
  for (const Json& step : document.at("passes")) {
    constexpr size_t kMostShown = 3;
    const Json& changes = step.at("changes");
    std::string what;
    for (size_t i = 0; i < std::min(changes.size(), kMostShown); ++i) what += (i ? "; " : "") + change_text(changes[i]);
    if (changes.size() > kMostShown) what += fmt::format("; and {} more", changes.size() - kMostShown);
    table.add({step.at("pass"), fmt::format("{} -> {}", step.at("nodes_before").get<int>(), step.at("nodes_after").get<int>()),
               std::to_string(step.at("elapsed_us").get<int64_t>()), what});
  }
  return "\npasses, in order\n" + table.to_text(2);
}

std::string shapes_text(const Json& operands) {
  std::string text;
  for (const Json& operand : operands) {
    if (operand.value("constant", false)) continue;
    std::string shape;
    for (const Json& extent : operand.value("shape", Json::array()))
      shape += (shape.empty() ? "" : "x") + std::to_string(extent.get<int64_t>());
    text += (text.empty() ? "" : ", ") + (operand.contains("shape") ? shape.empty() ? "scalar" : shape : "?");
  }
  return text;
}

std::string nodes_text(const Json& document, int top) {
  TextTable table({"node", "operator", "kernel", "shapes", "MFLOP", "MB", "ms at least", "passes"});
  double sum = 0;
  size_t shown = 0, unknown = 0;
  for (const Json& node : document.at("nodes")) {
    sum += node.value("estimated_ms", 0.0);
    unknown += node.contains("estimated_ms") ? 0 : 1;
    if (top > 0 && shown >= static_cast<size_t>(top)) continue;
    ++shown;
    auto number = [&](const char* field, double scale) {
      return node.contains(field) ? fmt::format("{:.3f}", node.at(field).get<double>() * scale) : std::string();
    };
    table.add({node.at("name"), node.at("op"), node.value("kernel", ""),
               shapes_text(node.at("inputs")) + " -> " + shapes_text(node.at("outputs")), number("flops", 1e-6), number("bytes", 1e-6),
               number("estimated_ms", 1), joined(node.value("passes", Json::array()))});
  }
  std::string text =
      "\nnodes as they run, in order  (ms at least: operations and bytes over the peaks of this machine)\n" + table.to_text(2);
  const size_t rest = document.at("nodes").size() - shown;
  if (rest > 0) text += fmt::format("  ... and {} more: --top 0 shows all\n", rest);
  return text + fmt::format("  together at least {:.4f} ms{}\n", sum,
                            unknown > 0 ? fmt::format(", without {} nodes of unknown cost", unknown) : "");
}

std::string memory_text(const Json& document) {
  const Json& memory = document.at("memory");
  auto megabytes = [&](const char* field) { return memory.value(field, 0.0) / 1e6; };
  std::string text = fmt::format(
      "\nmemory, as planned\n  weights {:.2f} MB, packed {:.2f} MB, arena {:.2f} MB ({:.2f} MB at least, {:.2f} MB without sharing)\n",
      megabytes("weight_bytes"), megabytes("packed_bytes"), megabytes("arena_bytes"), megabytes("arena_lower_bound_bytes"),
      megabytes("arena_sum_bytes"));
  if (!memory.contains("peak")) return text;
  const Json &peak = memory.at("peak"), &live = memory.at("live"), &steps = memory.at("steps");
  text += fmt::format("  most is alive at step {} of {}, {}: {:.3f} MB\n", peak.at("step").get<int>() + 1, steps.size(),
                      peak.at("node").get<std::string>(), peak.at("bytes").get<double>() / 1e6);
  // A bar for each stretch of steps, as high as its fullest one.
  constexpr size_t kBars = 60;
  static constexpr const char* kHeights[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::string bars;
  const size_t stride = steps.size() / kBars + 1;
  for (size_t from = 0; from < steps.size(); from += stride) {
    double most = 0;
    for (size_t i = from; i < std::min(from + stride, steps.size()); ++i) {
      double sum = 0;
      for (const Json& bytes : live) sum += bytes.at(i).get<double>();
      most = std::max(most, sum);
    }
    bars += kHeights[static_cast<size_t>(most / peak.at("bytes").get<double>() * 8 + 0.5)];
  }
  return text + "  over the steps  |" + bars + "|\n";
}

bool concerns(const Json& change, const std::string& name) {
  if (change.at("name") == name || contains(change.value("sources", Json::array()), name)) return true;
  const Json took = change.value("took", Json::array());
  return std::any_of(took.begin(), took.end(), [&](const Json& item) { return item.get<std::string>().ends_with(" " + name); });
}

// What became of a node of the model, or where one that runs comes from. @throws Error(not_found)
Json node_history(const Json& document, const std::string& name) {
  Json history{
      {"node", name}, {"assumed_extents", document.value("assumed_extents", "")}, {"steps", Json::array()}, {"runs_as", Json::array()}};
  for (const Json& node : document.at("nodes")) {
    const Json sources = node.value("sources", Json::array());
    if (node.at("name") != name && !contains(sources, name)) continue;
    history["runs_as"].push_back(node);
  }
  for (const Json& step : document.at("passes"))
    for (const Json& change : step.at("changes"))
      if (concerns(change, name)) history["steps"].push_back({{"pass", step.at("pass")}, {"what", change_text(change, /*in_full=*/true)}});
  for (const Json& view : document.at("views"))
    if (view.at("name") == name || contains(view.at("sources"), name)) history["views"].push_back(view);
  if (history["runs_as"].empty() && history["steps"].empty() && !history.contains("views"))
    throw Error(ErrorCode::not_found,
                fmt::format("{}: no node \"{}\", neither of the model nor as it runs", document.at("model").get<std::string>(), name));
  return history;
}

std::string assumed_line(const Json& document) {
  const std::string assumed = document.value("assumed_extents", "");
  return assumed.empty() ? assumed : "  dimensions that were not given: " + assumed + "\n";
}

std::string history_text(const Json& history) {
  std::string text = history.at("node").get<std::string>() + "\n" + assumed_line(history);
  for (const Json& step : history.at("steps"))
    text += fmt::format("  {}: {}\n", step.at("pass").get<std::string>(), step.at("what").get<std::string>());
  if (history.at("steps").empty()) text += "  no pass changed it\n";
  for (const Json& node : history.at("runs_as")) {
    text += fmt::format("  runs as {} {}", node.at("op").get<std::string>(), node.at("name").get<std::string>());
    if (node.contains("kernel")) text += fmt::format(" [{}]", node.at("kernel").get<std::string>());
    if (node.contains("estimated_ms")) text += fmt::format(", at least {:.4f} ms", node.at("estimated_ms").get<double>());
    text += "\n";
    if (node.contains("sources")) text += "    stands for " + joined(node.at("sources")) + "\n";
    for (const Json& unused : node.value("unused_kernels", Json::array()))
      text += fmt::format("    kernel {} is not taken: {}\n", unused.at("kernel").get<std::string>(), unused.at("why").get<std::string>());
    for (const Json& refusal : node.value("left_alone", Json::array()))
      text += fmt::format("    {} did no more: {}\n", refusal.at("pass").get<std::string>(), refusal.at("why").get<std::string>());
  }
  for (const Json& view : history.value("views", Json::array()))
    text += fmt::format("  {} {} needs no instruction: its result is a view, or known before a run\n", view.at("op").get<std::string>(),
                        view.at("name").get<std::string>());
  if (history.at("runs_as").empty() && !history.contains("views")) text += "  does not run\n";
  return text;
}

std::string document_text(const Json& document, int top) {
  std::string text = fmt::format("{}: {} nodes as read, {} as they run\n", document.at("model").get<std::string>(),
                                 document.at("nodes_as_read").get<size_t>(), document.at("nodes").size());
  text += assumed_line(document);
  return text + passes_text(document) + nodes_text(document, top) + memory_text(document);
}

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

int explain(const ExplainOptions& a) {
  if (!a.output.empty()) check_explanation_file(a.output);
  check_target("--output", a.output);
  const Json document = explain_document(Model::load(a.request.name), a.request);
  if (!a.node.empty()) {
    const Json history = node_history(document, a.node);
    if (a.json)
      show_json_text(dumped(history));
    else
      show("{}\n", history_text(history));
    return 0;
  }
  if (!a.output.empty()) {
    const std::string text = explanation_file(a.output, dumped(document));
    AtomicFile file(a.output);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  }
  if (a.json)
    show_json_text(dumped(document));
  else
    show_text(stdout, document_text(document, a.top));
  if (!a.output.empty() && !a.json) show("\nwritten to {}\n", a.output);
  return 0;
}

}  // namespace

std::string explain_model(const Model& model, const ExplainRequest& request) { return dumped(explain_document(model, request)); }
std::string explain_node(std::string_view document, const std::string& node) { return dumped(node_history(Json::parse(document), node)); }
std::string explanation_text(std::string_view document, int top) { return for_terminal(document_text(Json::parse(document), top)); }
void check_explanation_file(std::string_view path) {
  if (!path.ends_with(".html") && !path.ends_with(".json"))
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: a name that ends in .html or .json is expected", path));
}
std::string explanation_file(std::string_view path, std::string_view document) {
  check_explanation_file(path);
  return path.ends_with(".html") ? profile_to_html(document) : std::string(document);
}
std::string node_history_text(std::string_view history) { return for_terminal(history_text(Json::parse(history))); }

Command add_explain(CLI::App& app) {
  auto a = std::make_shared<ExplainOptions>();
  app.add_option("model", a->request.name, "ONNX file")->required();
  app.add_option("--node", a->node, "Say what became of this node of the model, and what the passes left alone behind it");
  add_input_options(app, a->request.inputs);
  add_session_options(app, a->request.session);
  app.add_option("--top", a->top, "Nodes to print; 0: all")->capture_default_str()->check(CLI::NonNegativeNumber);
  app.add_option("-o,--output", a->output, "Also write a page with the drawn graph (.html), or all of it (.json)")->excludes("--node");
  app.add_flag("--json", a->json, "Print JSON");
  app.footer("No node runs: times are estimates. `treadle profile` measures.\nExample: treadle explain model.onnx --node conv1");
  return [a, &app] {
    GivenOptions(app).need(!a->json && a->node.empty(), "the table: neither --json nor --node", {"--top"});
    return explain(*a);
  };
}

}  // namespace treadle::cli
