// Implements the command `treadle inspect`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/model_totals.h"
#include "cli/terminal.h"
#include "onnx/import.h"
#include "passes/pipeline.h"
#include "session/model.h"
#include "session/options.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

struct InspectOptions {
  std::string model, stage;
  bool json = false;
  InputOptions inputs;
  SessionOptions session;
};

nlohmann::json to_json(const std::vector<ValueInfo>& infos) {
  auto list = nlohmann::json::array();
  for (const ValueInfo& info : infos) {
    auto shape = nlohmann::json::array();
    for (const auto& extent : info.shape) {
      if (const auto* value = std::get_if<int64_t>(&extent))
        shape.push_back(*value);
      else
        shape.push_back(std::get<std::string>(extent));
    }
    list.push_back({{"name", info.name}, {"type", info.type}, {"shape", shape}});
  }
  return list;
}

struct Inspection {
  std::vector<std::string> missing;
  ModelTotals as_read, optimized;
  std::optional<MemoryReport> memory;  // memory of a run
  std::string unplanned;               // reason why `memory` is unknown
  AssumedExtents assumed;
};

// Determines cost and memory for the inputs' shapes by a run. If the run fails, as random inputs may not suit the model, records the error
// and counts only nodes whose shapes are known anyway. The run has a time limit, since users may inspect any file.
void measure(const Model& model, const InspectOptions& options, Inspection& found) {
  constexpr int64_t kLongestMs = 10'000;
  const Session session(model, options.session);
  std::map<std::string, Datum> feeds;
  auto optimized_for = [&](bool with_extents) {
    if (model.impl().compiled) return found.as_read;
    std::unique_ptr<Graph> graph = model.impl().import();
    for (ValueId id : graph->inputs)
      if (auto feed = feeds.find(graph->value(id).name); with_extents && feed != feeds.end())
        graph->value(id).type = Type::of(feed->second);
    onnx::upgrade(*graph);
    if (options.session.graph_optimization_level == GraphOptimizationLevel::disable_all)
      passes::canonicalize(*graph);
    else
      passes::optimize(*graph, {.level = optimizer_level(options.session.graph_optimization_level),
                                .skip = options.session.disabled_passes,
                                .max_patches = options.session.max_patches});
    return totals_of(*graph);
  };
  try {
    MadeFeeds made = make_feeds(session.inputs(), options.inputs);
    feeds = std::move(made.values);
    found.assumed = std::move(made.assumed);
    RunOptions bounded;
    bounded.deadline_ms = kLongestMs;
    session.run(feeds, {}, &bounded);
    found.memory = session.memory();
    found.optimized = optimized_for(true);
  } catch (const Error& error) {
    found.unplanned = error.what();
    found.optimized = optimized_for(false);
  }
}

nlohmann::json to_json(const Model& model, const Inspection& found) {
  const ModelMetadata& metadata = model.metadata();
  nlohmann::json out{{"producer", metadata.producer_name},
                     {"ir_version", metadata.ir_version},
                     {"opsets", metadata.opsets},
                     {"inputs", to_json(model.inputs())},
                     {"outputs", to_json(model.outputs())},
                     {"operators", found.as_read.operators},
                     {"parameters", found.as_read.num_parameters},
                     {"weight_bytes", found.as_read.total_weight_bytes()},
                     {"weight_bytes_by_dtype", found.as_read.weight_bytes},
                     {"unsupported", found.missing},
                     {"metadata", metadata.custom},
                     {"classes", class_names(model)},
                     {"compiled", model.impl().compiled != nullptr}};
  if (!found.missing.empty()) return out;
  out["assumed_extents"] = joined(found.assumed);
  out["optimized"] = {{"operators", found.optimized.operators},
                      {"flops", found.optimized.flops},
                      {"bytes_moved", found.optimized.bytes_moved},
                      {"nodes_without_cost", found.optimized.nodes_without_cost},
                      {"cost_is_complete", found.optimized.nodes_without_cost == 0}};
  if (found.memory) {
    out["packed_bytes"] = found.memory->packed_bytes;
    out["arena_bytes"] = found.memory->arena_bytes;
    out["arena_lower_bound_bytes"] = found.memory->arena_lower_bound_bytes;
    out["arena_sum_bytes"] = found.memory->arena_sum_bytes;
    out["arena_in_order_bytes"] = found.memory->arena_in_order_bytes;
    out["largest_node_bytes"] = found.memory->largest_node_bytes;
  } else if (found.missing.empty()) {
    out["memory_unknown"] = found.unplanned;
  }
  return out;
}

double megabytes_of(size_t bytes) { return static_cast<double>(bytes) / 1e6; }

void print_line(std::string_view what, const std::string& text) { show("  {} {}\n", styled(fmt::format("{:9}", what), Style::bold), text); }

void print_costs(const Inspection& found, const InputOptions& inputs) {
  const ModelTotals& totals = found.optimized;
  std::string cost = fmt::format("{:.3f} GFLOP, {:.2f} MB moved", totals.flops / 1e9, totals.bytes_moved / 1e6);
  if (totals.nodes_without_cost > 0)
    cost += fmt::format(", without {} of {} nodes whose shapes depend on data", totals.nodes_without_cost, totals.num_nodes());
  print_line("cost", cost);
  if (found.memory) {
    const MemoryReport& memory = *found.memory;
    print_line("memory", fmt::format("{:.2f} MB arena for activations, {:.2f} MB packed weights", megabytes_of(memory.arena_bytes),
                                     megabytes_of(memory.packed_bytes)));
    print_line("", fmt::format("(arena: {:.2f} MB lower bound, {:.2f} MB best fit in order, {:.2f} MB without reuse)",
                               megabytes_of(memory.arena_lower_bound_bytes), megabytes_of(memory.arena_in_order_bytes),
                               megabytes_of(memory.arena_sum_bytes)));
  } else {
    print_line("memory", "unknown: a run with random inputs fails");
    print_line("", found.unplanned);
  }
  if (!found.assumed.empty()) print_line("assumed", assumed_text(found.assumed, inputs));
}

// Prints the names of classes, and what else the model's author has written into it.
void print_metadata(const Model& model) {
  constexpr size_t kMostNamed = 10, kLongest = 100;
  if (const std::vector<std::string> names = class_names(model); !names.empty()) {
    const std::vector<std::string> named(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMostNamed)));
    print_line("classes", fmt::format("{}: {}{}", names.size(), fmt::join(named, ", "), names.size() > kMostNamed ? ", ..." : ""));
  }
  for (const auto& [key, text] : model.metadata().custom)
    if (key != kClassNames)
      print_line("metadata", fmt::format("{}: {}{}", key, text.substr(0, kLongest), text.size() > kLongest ? " ..." : ""));
}

void print_model(const InspectOptions& options, const Model& model, const Inspection& found) {
  const ModelMetadata& metadata = model.metadata();
  show("{}\n", styled(options.model, Style::bold));
  std::string producer = metadata.producer_name;
  if (!metadata.producer_version.empty()) producer += " " + metadata.producer_version;
  print_line("producer", fmt::format("{}{}IR {}", producer, producer.empty() ? "" : ", ", metadata.ir_version));
  std::string opsets;
  for (const auto& [domain, version] : metadata.opsets)
    opsets += fmt::format("{}{} {}", opsets.empty() ? "" : ", ", domain.empty() ? "ai.onnx" : domain, version);
  print_line("opsets", opsets);
  for (const ValueInfo& info : model.inputs()) print_line("input", fmt::format("{} {} {}", info.name, info.type, shape_text(info)));
  for (const ValueInfo& info : model.outputs()) print_line("output", fmt::format("{} {} {}", info.name, info.type, shape_text(info)));
  std::string weights =
      fmt::format("{} parameters, {:.2f} MB", found.as_read.num_parameters, megabytes_of(found.as_read.total_weight_bytes()));
  const char* separator = ": ";
  constexpr size_t kShown = 5000;  // fewer bytes would print as 0.00 MB
  for (const auto& [dtype, bytes] : found.as_read.weight_bytes)
    if (bytes >= kShown) {
      weights += fmt::format("{}{} {:.2f} MB", separator, dtype, megabytes_of(bytes));
      separator = ", ";
    }
  print_line("weights", weights);
  print_metadata(model);
  std::string nodes = fmt::format("{}", found.as_read.num_nodes());
  if (model.impl().compiled)
    nodes += ", compiled";
  else if (found.missing.empty())
    nodes += fmt::format(", {} after optimisation", found.optimized.num_nodes());
  print_line("nodes", nodes);
  TextTable table({"count", "operator"});
  for (const auto& [name, count] : found.as_read.operators) table.add({std::to_string(count), name});
  show("{}", table.to_text(4));
  if (found.missing.empty()) print_costs(found, options.inputs);
  for (const std::string& line : found.missing) print_line("missing", line);
}

int inspect(const InspectOptions& options) {
  const Model model = Model::load(options.model);
  if (!options.stage.empty()) {
    const std::string text = options.stage == "onnx" ? model.to_text() : Session(model, options.session).to_text(options.stage);
    if (options.json)
      show_json(nlohmann::json{{"stage", options.stage}, {"graph", text}});
    else
      show_text(stdout, text);
    return 0;
  }
  Inspection found{.missing = model.unsupported(), .as_read = totals_of(*model.impl().held_graph())};
  if (found.missing.empty()) measure(model, options, found);
  if (options.json)
    show_json(to_json(model, found));
  else
    print_model(options, model, found);
  return 0;
}

}  // namespace

Command add_inspect(CLI::App& app) {
  app.description("Show a model: graph, operators, parameters, dynamic extents, cost, memory");
  auto options = std::make_shared<InspectOptions>();
  app.add_option("model", options->model, "ONNX file")->required();
  add_input_options(app, options->inputs);
  add_session_options(app, options->session);
  app.add_flag("--json", options->json, "Print JSON");
  app.add_option("--stage", options->stage, "Print the whole graph at this stage")
      ->check(CLI::IsMember({"onnx", "optimized", "planned", "devices"}));
  app.footer("Example: treadle inspect model.onnx --stage planned");
  return [options, &app] {
    const GivenOptions given(app);
    constexpr std::string_view kNoStage = "no --stage, which prints the graph for all extents";
    given.need(options->stage.empty(), kNoStage, {"inputs"});
    given.need(options->stage.empty(), kNoStage, sample_options());
    given.need(options->stage != "onnx", "another --stage than onnx, which is the graph as written", session_options());
    return inspect(*options);
  };
}

}  // namespace treadle::cli
