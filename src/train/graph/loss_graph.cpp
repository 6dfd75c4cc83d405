#include "train/graph/loss_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/base/sha1.h"
#include "graph/infer.h"
#include "graph/inline_graph.h"
#include "onnx/import.h"
#include "onnx/serialize.h"
#include "session/model.h"
#include "train/graph/training_graph.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

/// Imports the graph of the loss model. Its symbolic extents get a prefix, so that "N" of the loss differs from "N" of the trained model.
std::unique_ptr<Graph> import_loss(const Model& loss, const Graph& model) {
  std::unique_ptr<Graph> graph = onnx::import_graph(loss.impl().def, {.symbols = model.symbol_table(), .symbol_prefix = "loss/"});
  if (auto missing = onnx::list_unsupported(*graph); !missing.empty())
    throw Error(ErrorCode::not_implemented, fmt::format("this build cannot run the loss; it lacks:\n    {}", fmt::join(missing, "\n    ")));
  onnx::upgrade(*graph);
  if (graph->inputs.empty() || graph->outputs.size() != 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a loss's graph has one output, and inputs of which the first takes what the loss is taken of; this one has {} "
                            "inputs and {} outputs",
                            graph->inputs.size(), graph->outputs.size()));
  return graph;
}

std::vector<std::string> names_of_inputs(const Graph& graph) {
  std::vector<std::string> names;
  for (ValueId input : graph.inputs) names.push_back(graph.value(input).name);
  return names;
}

/// Connects the inputs of the loss model to values of the trained model.
class Connections {
 public:
  Connections(Graph& model, const Graph& loss) : model_(model), loss_(loss) {}

  void connect(ValueId input, ValueId value) {
    const Type &declared = loss_.type(input), &given = model_.type(value);
    bool contradicts = false;
    merge(given, declared, &contradicts);
    if (contradicts)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the loss's input \"{}\" is {}; the model's \"{}\", which it takes, is {}", loss_.value(input).name,
                              to_string(declared), model_.value(value).name, to_string(given)));
    copies_[input] = value;
    if (!declared.has_rank() || !given.has_rank()) return;
    for (size_t axis = 0; axis < declared.shape->size(); ++axis)
      if (const Dim& extent = (*declared.shape)[axis]; !extent.is_const()) extents_.emplace_back(extent, (*given.shape)[axis]);
  }

  /// Adds an input that the caller must feed. A symbolic extent that also occurs in a connected input gets the model's extent.
  void feed(ValueId input, std::string_view name) {
    Type type = loss_.type(input);
    if (type.has_rank())
      for (Dim& extent : *type.shape)
        if (auto known = std::ranges::find(extents_, extent, &std::pair<Dim, Dim>::first); known != extents_.end()) extent = known->second;
    copies_[input] = model_.add_input(name, type);
  }

  std::map<ValueId, ValueId>& copies() { return copies_; }

 private:
  Graph& model_;
  const Graph& loss_;
  std::map<ValueId, ValueId> copies_;
  std::vector<std::pair<Dim, Dim>> extents_;
};

}  // namespace

ValueId add_loss_graph(Graph& graph, ValueId output, const TrainerOptions& options) {
  const std::unique_ptr<Graph> loss = import_loss(*options.loss_model, graph);
  const std::vector<std::string> names = names_of_inputs(*loss);
  const auto operands = loss_operands(names, [&](const std::string& name) { return graph.find_value(name) != kNoValue; });
  Connections connections(graph, *loss);
  for (const bool fed : {false, true})  // connects values first, because extents of fed inputs depend on them
    for (size_t i = 0; i < operands.size(); ++i) {
      const ValueId input = loss->inputs[i];
      if (fed != (operands[i] == LossOperand::labels || operands[i] == LossOperand::feed)) continue;
      if (fed)
        connections.feed(input, operands[i] == LossOperand::labels ? kLabels : std::string_view(names[i]));
      else
        connections.connect(input, operands[i] == LossOperand::output ? output : graph.find_value(names[i]));
    }
  for (NodeId node : inline_graph(graph, *loss, connections.copies())) infer_node(graph, node);
  return connections.copies().at(loss->outputs[0]);
}

std::string loss_digest(const TrainerOptions& options) {
  const std::string bytes = onnx::serialize_model(options.loss_model->impl().def);
  return sha1(std::as_bytes(std::span(bytes)));
}

LossInputs loss_inputs(const Model& model, const TrainerOptions& options) {
  LossInputs found;
  if (options.loss != Loss::graph || !options.loss_model) return found;
  const onnx::GraphDef& graph = model.impl().def.graph;
  std::set<std::string, std::less<>> values;
  for (const onnx::ValueInfoDef& input : graph.inputs) values.insert(input.name);
  for (const onnx::TensorDef& initializer : graph.initializers) values.insert(initializer.name);
  for (const onnx::NodeDef& node : graph.nodes) values.insert(node.outputs.begin(), node.outputs.end());
  const std::vector<ValueInfo> inputs = options.loss_model->inputs();
  std::vector<std::string> names;
  for (const ValueInfo& input : inputs) names.push_back(input.name);
  const auto operands = loss_operands(names, [&](const std::string& name) { return values.contains(name); });
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (operands[i] == LossOperand::labels) found.labels = inputs[i];
    if (operands[i] == LossOperand::feed) found.feeds.push_back(inputs[i]);
  }
  return found;
}

}  // namespace treadle::train
