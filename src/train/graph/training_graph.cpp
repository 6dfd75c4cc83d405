#include "train/graph/training_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <ranges>

#include "autodiff/gradient.h"
#include "core/base/nearest.h"
#include "core/base/pattern.h"
#include "exec/program/load_shortage.h"
#include "graph/dead_nodes.h"
#include "graph/infer.h"
#include "graph/internal_attributes.h"
#include "graph/op_def.h"
#include "onnx/import.h"
#include "passes/infer_storage.h"
#include "passes/pipeline.h"
#include "session/options.h"
#include "session/refusals.h"
#include "session/run_names.h"
#include "train/graph/batch.h"
#include "train/graph/head.h"
#include "treadle/error.h"

namespace treadle::train {

namespace {

void make_changeable(Graph& graph, ValueId id, bool as_parameter) {
  Value& value = graph.value(id);
  value.type = Type::of(value.constant);
  value.kind = as_parameter ? Value::Kind::parameter : Value::Kind::input;
  std::erase(graph.overridable_initializers, id);
  if (as_parameter) return;
  value.constant = Datum();
  graph.inputs.push_back(id);
}

// Turns the inputs and initializers that `held` names into values of kind `parameter`, which use the caller's tensors in `held`.
void hold(Graph& graph, const NamedTensors& held) {
  for (const auto& [name, tensor] : held) {
    const ValueId id = graph.find_value(name);
    const bool is_input = id != kNoValue && std::find(graph.inputs.begin(), graph.inputs.end(), id) != graph.inputs.end();
    if (id == kNoValue || (!is_input && !graph.value(id).is_constant()))
      throw Error(ErrorCode::not_found, fmt::format("the model has neither an input nor an initializer \"{}\"", name));
    bool contradicts = false;
    merge(Type::of(tensor), is_input ? graph.type(id) : Type::of(graph.value(id).constant), &contradicts);
    if (contradicts)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("\"{}\" is {}, the model has {}", name, describe(Datum(tensor)), to_string(graph.type(id))));
    std::erase(graph.inputs, id);
    graph.value(id).constant = tensor;
    make_changeable(graph, id, /*as_parameter=*/true);
  }
}

// Returns output i of a node. Adds this output if the node does not have it.
ValueId add_output(Graph& graph, NodeId id, size_t i, std::string_view name) {
  if (graph.node(id).has_output(i)) return graph.node(id).outputs[i];
  const ValueId made = graph.add_value(name);
  graph.value(made).producer = id;
  graph.value(made).output = static_cast<int>(i);
  Node& node = graph.node(id);
  if (node.outputs.size() <= i) node.outputs.resize(i + 1, kNoValue);
  node.outputs[i] = made;
  return made;
}

std::set<std::string> running_statistics(const Graph& graph) {
  std::set<std::string> names;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!node.is("BatchNormalization")) continue;
    for (size_t i : {3U, 4U})
      if (node.has_input(i)) names.insert(graph.value(node.inputs[i]).name);
  }
  return names;
}

void keep_statistics(TrainingGraph& training, NodeId id, bool unbiased_variance) {
  Graph& graph = *training.graph;
  graph.node(id).attributes.set("training_mode", int64_t{1});
  if (unbiased_variance) graph.node(id).attributes.set(kUnbiasedVariance, int64_t{1});
  for (size_t i : {1U, 2U}) {
    const std::string name = graph.value(graph.node(id).inputs[i + 2]).name;
    if (graph.value(graph.node(id).inputs[i + 2]).kind != Value::Kind::input)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("BatchNormalization node \"{}\": its running statistics \"{}\" are no float32 initializer of the model, so "
                              "that training has nowhere to keep them",
                              graph.node(id).name, name));
    if (std::any_of(training.states.begin(), training.states.end(), [&](const auto& state) { return state.name == name; }))
      throw Error(ErrorCode::not_implemented,
                  fmt::format("BatchNormalization node \"{}\": its running statistics \"{}\" are another node's, too; training keeps those "
                              "of one node each",
                              graph.node(id).name, name));
    const ValueId updated = add_output(graph, id, i, name + "/updated");
    training.states.push_back({name, updated});
  }
  infer_node(graph, id);
}

/// Sets BatchNormalization and Dropout nodes to training mode.
/// @param fed  names of the model's own inputs, which the caller feeds.
void switch_to_training(TrainingGraph& training, const std::set<std::string>& fed, const Selection& selection) {
  Graph& graph = *training.graph;
  for (const std::string& name : selection.states)
    if (!fed.contains(name)) throw Error(ErrorCode::not_found, fmt::format("the model has no input \"{}\" for running statistics", name));
  auto stays = [&](const std::string& name) {
    return fed.contains(name) && std::find(selection.states.begin(), selection.states.end(), name) == selection.states.end();
  };
  for (NodeId id : graph.order()) {
    if (graph.node(id).is("BatchNormalization")) {
      if (!stays(graph.value(graph.node(id).inputs[3]).name)) keep_statistics(training, id, selection.unbiased_variance);
    } else if (graph.node(id).is("Dropout") && !graph.node(id).has_input(2)) {
      Tensor yes(DType::boolean, {});
      *yes.data<bool>() = true;
      graph.resize_inputs(id, 3);
      graph.set_input(id, 2, graph.add_constant("training_mode", yes));
      infer_node(graph, id);
    }
  }
}

// Returns true for a constant that nodes use only as a setting: as extents, axes, scales and the like, whose elements type inference and
// graph rewrites read. Such a constant has no gradient.
bool is_setting(const Graph& graph, ValueId id) {
  const std::vector<Use>& uses = graph.value(id).uses;
  return !uses.empty() && !graph.is_output(id) && std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
    const OpDef* op = graph.node(use.node).op;
    return op && std::find(op->value_inputs.begin(), op->value_inputs.end(), use.input) != op->value_inputs.end();
  });
}

bool has_parameters(const Graph& graph) {
  for (size_t i = 0; i < graph.num_values(); ++i)
    if (graph.value(ValueId{static_cast<uint32_t>(i)}).kind == Value::Kind::parameter) return true;
  return false;
}

void keep_nodes(TrainingGraph& training, const SessionOptions& options) {
  if (names_nodes(options.precision)) add_nodes(*training.graph, training.nodes);
}

passes::PipelineOptions pipeline_options(const SessionOptions& options) {
  if (!(options.max_weight_expansion >= 1))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("max_weight_expansion is {}, not a number from 1 on", options.max_weight_expansion));
  return {.level = optimizer_level(options.graph_optimization_level),
          .weights_change = true,
          .skip = options.disabled_passes,
          .max_patches = options.max_patches,
          .precision = passes::PrecisionRules::parse(options.precision),
          .conv_choice = {.max_weight_expansion = options.max_weight_expansion},
          .log = options.on_pass,
          .warn = options.on_warning};
}

ValueId zeros_like(Graph& graph, ValueId x) {
  Tensor zero(graph.type(x).dtype, {1});
  std::memset(zero.raw(), 0, zero.size_bytes());
  const std::string name = graph.value(x).name + "/zeros";
  const ValueId shape = appended(graph, {.op_type = "Shape", .inputs = {x}, .name = name + "/shape"});
  return appended(graph, {.op_type = "ConstantOfShape", .inputs = {shape}, .attributes = {{"value", zero}}, .name = name});
}

std::set<std::string> names_of_statistics(const onnx::GraphDef& graph) {
  std::set<std::string> statistics;
  for (const onnx::NodeDef& node : graph.nodes)
    if (node.op_type == "BatchNormalization" && node.domain.empty())
      for (size_t i = 3; i < node.inputs.size(); ++i) statistics.insert(node.inputs[i]);
  return statistics;
}

// Returns the indices of Identity nodes whose output is a running statistic.
std::set<size_t> copied_statistics(const onnx::GraphDef& graph) {
  const std::set<std::string> statistics = names_of_statistics(graph);
  std::set<size_t> found;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const onnx::NodeDef& node = graph.nodes[i];
    if (node.op_type == "Identity" && node.domain.empty() && node.inputs.size() == 1 && node.outputs.size() == 1 &&
        statistics.contains(node.outputs[0]))
      found.insert(i);
  }
  return found;
}

bool is_weight(DType dtype, const Shape& shape) { return dtype == DType::float32 && shape.rank() > 0 && shape.num_elements() > 1; }

// If no initializer of the model is a weight, returns the indices of Constant nodes that contain weights. PaddlePaddle's exporter writes
// models like this.
std::set<size_t> constant_weights(const onnx::GraphDef& graph) {
  const auto& initializers = graph.initializers;
  if (std::any_of(initializers.begin(), initializers.end(), [](const auto& def) { return is_weight(def.dtype, def.shape); })) return {};
  const std::set<std::string> statistics = names_of_statistics(graph);
  std::set<size_t> found;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const onnx::NodeDef& node = graph.nodes[i];
    if (node.op_type != "Constant" || !node.domain.empty() || node.outputs.size() != 1 || node.attributes.size() != 1) continue;
    const auto& tensor = node.attributes[0].t;
    if (node.attributes[0].name != "value" || !tensor || tensor->dtype != DType::float32) continue;
    if (is_weight(tensor->dtype, tensor->shape) || statistics.contains(node.outputs[0])) found.insert(i);
  }
  return found;
}

void store_inputs(Graph& graph, const std::vector<std::string>& parameters, const SessionOptions& options) {
  const auto given = options.config.find("treadle.storage");
  if (given == options.config.end()) return;
  const auto storages = passes::parse_storage(given->second);
  for (const std::string& name : parameters)
    if (storages.contains(name))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("treadle.storage names the parameter \"{}\": those are dense in training", name));
  passes::infer_storage(graph, storages, options.on_warning);
}

}  // namespace

std::unique_ptr<Graph> upgraded_graph(const Model& model) {
  std::unique_ptr<Graph> graph = model.impl().import();
  onnx::upgrade(*graph);
  return graph;
}

Model with_own_initializers(const Model& model) {
  std::set<size_t> copied = copied_statistics(model.impl().def.graph);
  std::erase_if(copied, [&](size_t i) { return !find_initializer(model, model.impl().def.graph.nodes[i].inputs[0]); });
  const std::set<size_t> constants = constant_weights(model.impl().def.graph);
  if (copied.empty() && constants.empty()) return model;
  onnx::ModelDef def = model.impl().def;
  for (size_t i : constants) {
    onnx::TensorDef own = std::move(*def.graph.nodes[i].attributes[0].t);
    own.name = def.graph.nodes[i].outputs[0];
    def.graph.initializers.push_back(std::move(own));
  }
  // Before IR version 4, each initializer also had to be a graph input.
  if (!constants.empty()) def.ir_version = std::max<int64_t>(def.ir_version, 4);
  for (size_t i : copied) {
    onnx::TensorDef own;
    const onnx::TensorDef& source = *find_initializer(model, def.graph.nodes[i].inputs[0]);
    own.name = def.graph.nodes[i].outputs[0], own.dtype = source.dtype, own.shape = source.shape, own.value = source.value;
    def.graph.initializers.push_back(std::move(own));
  }
  copied.insert(constants.begin(), constants.end());
  for (size_t i : std::views::reverse(copied)) def.graph.nodes.erase(def.graph.nodes.begin() + static_cast<std::ptrdiff_t>(i));
  return make_model(std::move(def), {});
}

Model prepared(const Model& model, const TrainerOptions& options) {
  return with_head(with_dynamic_batch(untied(with_own_initializers(model), options.untied), options), options);
}

ValueId find_output(const Graph& graph, const std::string& name) {
  if (name.empty() && !graph.outputs.empty()) return graph.outputs[0];
  auto found = std::find(graph.output_names.begin(), graph.output_names.end(), name);
  if (found == graph.output_names.end()) {
    if (const ValueId value = graph.find_value(name); value != kNoValue) return value;
    throw Error(ErrorCode::not_found,
                fmt::format("there is no output or value \"{}\"; the outputs are: {}", name, fmt::join(graph.output_names, ", ")));
  }
  return graph.outputs[static_cast<size_t>(found - graph.output_names.begin())];
}

TrainingGraph make_training_graph(const Model& model, const Selection& selection, bool training) {
  TrainingGraph made;
  made.graph = model.impl().import();
  made.explicit_parameters = !selection.parameters.empty();
  Graph& graph = *made.graph;
  if (auto missing = onnx::list_unsupported(graph); !missing.empty())
    throw Error(ErrorCode::not_implemented,
                fmt::format("this build cannot run the model; it lacks:\n    {}", fmt::join(missing, "\n    ")));
  for (NodeId id : graph.order())
    if (graph.node(id).op && graph.node(id).op->barrier) refuse("training", "Yields", graph.node(id).name);
  std::vector<std::string> initializers;
  for (const onnx::TensorDef& initializer : model.impl().def.graph.initializers) initializers.push_back(initializer.name);
  for (const auto* names : {&selection.parameters, &selection.frozen})
    for (const std::string& name : *names)
      if (std::none_of(initializers.begin(), initializers.end(), [&](const std::string& other) { return matches(name, other); }))
        throw Error(ErrorCode::not_found,
                    fmt::format("the model has no initializer \"{}\"; the nearest: {}", name, nearest_names(name, initializers)));
  const std::set<std::string> statistics = running_statistics(graph);
  std::set<std::string> fed;
  for (ValueId input : graph.inputs) fed.insert(graph.value(input).name);
  if (selection.held) hold(graph, *selection.held);  // after filling `fed`, since hold() removes inputs that `fed` must contain
  for (const onnx::TensorDef& initializer : model.impl().def.graph.initializers) {
    const ValueId id = graph.find_value(initializer.name);
    if (id == kNoValue || !graph.value(id).is_constant() || initializer.dtype != DType::float32) continue;
    if (selection.held && !training) continue;  // initializers that are not held stay constants
    const bool state = statistics.contains(initializer.name);
    const bool by_default = selection.lora.rank == 0 && initializer.shape.rank() > 0;
    if (is_setting(graph, id)) {
      if (std::ranges::find(selection.parameters, initializer.name) != selection.parameters.end())
        throw Error(
            ErrorCode::invalid_argument,
            fmt::format("the parameter \"{}\" has no gradient: nodes read it as a setting (axes, extents, scales)", initializer.name));
      continue;
    }
    const bool chosen = made.explicit_parameters ? matches_any(selection.parameters, initializer.name) : by_default;
    if (!state && (!chosen || matches_any(selection.frozen, initializer.name))) continue;
    make_changeable(graph, id, selection.as_parameters);
    if (!state) made.parameters.push_back(initializer.name);
  }
  onnx::upgrade(graph);
  if (selection.lora.rank > 0) made.adapters = add_adapters(graph, initializers, selection.lora);
  for (const Adapter& adapter : made.adapters) made.parameters.insert(made.parameters.end(), {adapter.a, adapter.b});
  if (training) switch_to_training(made, fed, selection);
  if (selection.session) {
    store_inputs(graph, made.parameters, *selection.session);
    keep_nodes(made, *selection.session);
  }
  return made;
}

namespace {
void run_pipeline(Graph& graph, const passes::PipelineOptions& options) {
  try {
    passes::optimize(graph, options);
  } catch (const OutOfMemory&) {
    exec::rethrow_with_graph(graph);
  }
}
}  // namespace

void simplify_forward(TrainingGraph& training, std::vector<ValueId>& kept, const SessionOptions& options) {
  if (options.graph_optimization_level < GraphOptimizationLevel::extended) return;
  Graph& graph = *training.graph;
  Outputs outputs;
  for (ValueId value : kept) outputs.emplace_back(graph.value(value).name, value);
  for (const TrainingGraph::State& state : training.states) outputs.emplace_back(state.name, state.updated);
  // Copies the inputs, because set_outputs() drops unused ones, for which callers may still request a gradient.
  const std::vector<ValueId> inputs = graph.inputs;
  set_outputs(graph, outputs);
  training.read = graph.inputs;
  passes::PipelineOptions pipeline = pipeline_options(options);
  pipeline.before_autodiff = true;
  // With reduced precision, attention is not fused: the fused operator's backward pass exists in float32 only, and separate products of
  // lower precision are faster.
  if (!pipeline.precision.empty()) pipeline.skip.push_back("fuse-attention");
  keep_nodes(training, options);  // records the names of the loss's nodes, for check_precision_patterns()
  run_pipeline(graph, pipeline);
  keep_nodes(training, options);
  graph.inputs = inputs;
  std::copy_n(graph.outputs.begin(), kept.size(), kept.begin());
  for (size_t i = 0; i < training.states.size(); ++i) training.states[i].updated = graph.outputs[kept.size() + i];
}

std::vector<ValueId> add_backward(TrainingGraph& training, const Model& model, std::span<const ValueId> ys,
                                  std::span<const ValueId> grad_ys, std::span<const ValueId> more, bool with_zeros) {
  Graph& graph = *training.graph;
  std::vector<ValueId> xs;
  for (const std::string& name : training.parameters) xs.push_back(training.value(name));
  xs.insert(xs.end(), more.begin(), more.end());
  const std::vector<ValueId> grads = autodiff::add_gradients(graph, ys, grad_ys, xs);
  std::vector<ValueId> kept;
  std::vector<std::string> parameters;
  for (size_t i = 0; i < training.parameters.size(); ++i) {
    const std::string& name = training.parameters[i];
    if (grads[i] != kNoValue) {
      kept.push_back(grads[i]);
      parameters.push_back(name);
      continue;
    }
    const onnx::TensorDef* initializer = find_initializer(model, name);  // null for an adapter, which has no initializer
    if (training.explicit_parameters && initializer)
      throw Error(ErrorCode::invalid_argument, fmt::format("the loss does not depend on the parameter \"{}\"", name));
    Value& value = graph.value(xs[i]);
    value.kind = Value::Kind::constant;
    value.constant = initializer ? initializer->value : initial_adapters(training.adapters, 0).at(name);
    std::erase(graph.inputs, xs[i]);
  }
  if (parameters.empty() && more.empty())
    throw Error(ErrorCode::invalid_argument, "the loss depends on no float32 initializer of rank 1 or more: there is nothing to train");
  training.parameters = std::move(parameters);
  std::erase_if(training.adapters, [&](const Adapter& adapter) {
    return std::find(training.parameters.begin(), training.parameters.end(), adapter.a) == training.parameters.end();
  });
  for (size_t i = 0; i < more.size(); ++i) {
    const ValueId gradient = grads[xs.size() - more.size() + i];
    // If the outputs do not depend on the value, or only through operators such as Sign, no node computes its gradient, which is zero.
    kept.push_back(gradient != kNoValue || !with_zeros ? gradient : zeros_like(graph, more[i]));
  }
  return kept;
}

void optimize(Graph& graph, const SessionOptions& options, const SessionDevices* devices, std::vector<std::string> nodes) {
  if (options.graph_optimization_level == GraphOptimizationLevel::disable_all) {
    passes::canonicalize(graph);
  } else {
    passes::PipelineOptions pipeline = pipeline_options(options);
    pipeline.weights_packed = has_parameters(graph);
    const std::optional<passes::DeviceForms> forms = devices ? devices->forms(graph) : std::nullopt;
    if (forms) pipeline.device = &*forms;
    if (forms && !pipeline.precision.empty() && !forms->has("RoundedMatMul")) refuse("a device with kernels of its own", "precision");
    run_pipeline(graph, pipeline);
  }
  if (nodes.empty()) return;
  add_nodes(graph, nodes);
  check_precision_patterns(options.precision, nodes);
}

}  // namespace treadle::train
