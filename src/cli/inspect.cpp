// treadle inspect
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands.h"
#include "cli/inputs.h"
#include "exec/program.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "onnx/import.h"
#include "passes/pipeline.h"
#include "session/model.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

struct InspectOptions {
  std::string model, stage;
  bool json = false, graph = false;
  InputOptions inputs;
};

/// What a graph is made of, bodies included.
struct Totals {
  std::map<std::string, int64_t> operators;
  int64_t num_parameters = 0;
  size_t weight_bytes = 0;
  double flops = 0, bytes_moved = 0;
  bool cost_is_complete = true;  // false: some shapes depend on symbols or data
};

void add_cost(const Graph& graph, const Node& node, Totals& totals) {
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
  auto operand = [&](ValueId id) {
    shapes.emplace_back();
    dtypes.push_back(DType::undefined);
    if (id == kNoValue) return true;
    if (!graph.type(id).is_static()) return false;
    shapes.back() = graph.type(id).static_shape();
    dtypes.back() = graph.type(id).dtype;
    return true;
  };
  bool known = true;
  for (ValueId id : node.inputs) known &= operand(id);
  for (ValueId id : node.outputs) known &= operand(id);
  if (!known) {
    totals.cost_is_complete = false;
    return;
  }
  if (!node.op || !node.op->cost) return;
  std::vector<const Shape*> pointers;
  for (const Shape& shape : shapes) pointers.push_back(&shape);
  ShapeContext context(node);
  context.shapes_ = pointers;
  context.dtypes_ = dtypes;
  Cost cost = node.op->cost(context);
  totals.flops += cost.flops;
  totals.bytes_moved += cost.bytes;
}

void collect(const Graph& graph, Totals& totals) {
  for (size_t i = 0; i < graph.num_values(); ++i) {
    ValueId id{static_cast<uint32_t>(i)};
    const Tensor* constant = graph.constant_tensor(id);
    if (!constant || graph.value(id).uses.empty()) continue;
    if (is_float(constant->dtype())) totals.num_parameters += constant->num_elements();
    totals.weight_bytes += constant->size_bytes();
  }
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    ++totals.operators[(node.domain.empty() ? "" : node.domain + ".") + node.op_type];
    add_cost(graph, node, totals);
    for (const Body& body : node.bodies) collect(*body.graph, totals);
  }
}

std::string shape_text(const ValueInfo& info) {
  std::string text;
  for (const auto& extent : info.shape) {
    const auto* value = std::get_if<int64_t>(&extent);
    const auto* symbol = std::get_if<std::string>(&extent);
    text += (text.empty() ? "" : ", ") + (value ? std::to_string(*value) : symbol->empty() ? "?" : *symbol);
  }
  return info.has_rank ? "[" + text + "]" : "[...]";
}

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

int inspect(const InspectOptions& options) {
  Model model = Model::load(options.model);
  if (!options.stage.empty()) {
    if (options.stage == "onnx")
      std::fputs(model.to_text().c_str(), stdout);
    else
      std::fputs(Session(model).to_text(options.stage).c_str(), stdout);
    return 0;
  }
  const ModelMetadata& metadata = model.metadata();
  std::vector<std::string> missing = model.unsupported();
  Totals as_read, optimised;
  collect(*model.impl().import(), as_read);
  MemoryReport memory;
  bool planned = false;
  if (missing.empty()) {
    std::unique_ptr<Graph> graph = model.impl().import();
    onnx::upgrade(*graph);
    passes::optimize(*graph);
    collect(*graph, optimised);
    // Every symbol the caller did not name is 1.
    Session session(model);
    try {
      session.run(make_feeds(session.inputs(), options.inputs));
      memory = session.memory();
      planned = true;
    } catch (const Error&) {
      // Random inputs do not suit every model (indices out of range, extents that must agree); the plan is then unknown.
    }
  }
  if (options.json) {
    nlohmann::json out{{"producer", metadata.producer_name},   {"ir_version", metadata.ir_version},    {"opsets", metadata.opsets},
                       {"inputs", to_json(model.inputs())},    {"outputs", to_json(model.outputs())},  {"operators", as_read.operators},
                       {"parameters", as_read.num_parameters}, {"weight_bytes", as_read.weight_bytes}, {"unsupported", missing}};
    if (missing.empty()) {
      out["optimised"] = {{"operators", optimised.operators},
                          {"flops", optimised.flops},
                          {"bytes_moved", optimised.bytes_moved},
                          {"cost_is_complete", optimised.cost_is_complete}};
      if (planned) {
        out["packed_bytes"] = memory.packed_bytes;
        out["arena_bytes"] = memory.arena_bytes;
        out["arena_lower_bound_bytes"] = memory.arena_lower_bound_bytes;
        out["arena_sum_bytes"] = memory.arena_sum_bytes;
        out["arena_in_order_bytes"] = memory.arena_in_order_bytes;
        out["largest_node_bytes"] = memory.largest_node_bytes;
      }
    }
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  fmt::print("{}\n  producer  {} {}, IR {}\n  opsets   ", options.model, metadata.producer_name, metadata.producer_version,
             metadata.ir_version);
  for (const auto& [domain, version] : metadata.opsets) fmt::print(" {} {}", domain.empty() ? "ai.onnx" : domain, version);
  for (const ValueInfo& info : model.inputs()) fmt::print("\n  input     {} {} {}", info.name, info.type, shape_text(info));
  for (const ValueInfo& info : model.outputs()) fmt::print("\n  output    {} {} {}", info.name, info.type, shape_text(info));
  int64_t nodes = 0, nodes_after = 0;
  for (const auto& entry : as_read.operators) nodes += entry.second;
  for (const auto& entry : optimised.operators) nodes_after += entry.second;
  fmt::print("\n  weights   {} parameters, {:.2f} MB\n  nodes     {}", as_read.num_parameters,
             static_cast<double>(as_read.weight_bytes) / 1e6, nodes);
  if (missing.empty()) fmt::print(", {} after optimisation", nodes_after);
  for (const auto& [name, count] : as_read.operators) fmt::print("\n    {:6}  {}", count, name);
  if (missing.empty()) {
    fmt::print("\n  cost      {:.3f} GFLOP, {:.2f} MB moved{}", optimised.flops / 1e9, optimised.bytes_moved / 1e6,
               optimised.cost_is_complete ? "" : " (of the nodes whose shapes are fixed)");
    auto megabytes = [](size_t bytes) { return static_cast<double>(bytes) / 1e6; };
    if (planned)
      fmt::print(
          "\n  memory    {:.2f} MB arena for activations, {:.2f} MB is the least possible; {:.2f} MB by best fit in order, {:.2f} MB "
          "if nothing shared bytes; {:.2f} MB of packed weights",
          megabytes(memory.arena_bytes), megabytes(memory.arena_lower_bound_bytes), megabytes(memory.arena_in_order_bytes),
          megabytes(memory.arena_sum_bytes), megabytes(memory.packed_bytes));
  }
  for (const std::string& line : missing) fmt::print("\n  missing   {}", line);
  fmt::print("\n");
  return 0;
}

}  // namespace

Command add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  app.add_option("model", options->model, "ONNX file")->required();
  add_input_options(app, options->inputs);
  app.add_flag("--json", options->json, "Print JSON");
  app.add_option("--stage", options->stage, "Print the whole graph at this stage")->check(CLI::IsMember({"onnx", "optimised", "planned"}));
  app.footer("Example: treadle inspect model.onnx --stage planned");
  return [options] { return inspect(*options); };
}

}  // namespace treadle::cli
