#include "train/graph/head.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "graph/op_def.h"
#include "onnx/import.h"
#include "session/model.h"
#include "train/graph/random.h"
#include "train/graph/training_graph.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

/// The model's last layer, with its weights and bias. Their shapes contain the number of classes.
struct Layer {
  NodeId node = kNoNode;
  std::string weight;
  int64_t classes = 0;
  std::map<std::string, int> axes;  // for the weights and the bias, by name: the axis of the classes
  std::set<std::string> behind;     // names of the values between the layer and the output
};

std::string describe_output(const Graph& graph, ValueId value) { return fmt::format("\"{}\"", graph.value(value).name); }

/// If the value is an initializer, or the Transpose of one, returns this initializer; otherwise kNoValue. Sets `transposed`.
ValueId initializer_of(const Graph& graph, ValueId value, bool& transposed) {
  const Value* found = &graph.value(value);
  if (found->kind == Value::Kind::computed && graph.node(found->producer).is("Transpose") && graph.type(value).has_rank() &&
      graph.type(value).rank() == 2 && found->uses.size() == 1) {
    const Node& node = graph.node(found->producer);
    transposed = node.attributes.get_ints("perm") != std::vector<int64_t>{0, 1};
    value = node.inputs[0];
    found = &graph.value(value);
  }
  return found->is_constant() && graph.constant_tensor(value) ? value : kNoValue;
}

/// If the value is a constant vector, adds it to the layer as a bias.
/// @return true if the value is constant
bool take_bias(const Graph& graph, ValueId value, Layer& layer) {
  const Tensor* bias = graph.value(value).is_constant() ? graph.constant_tensor(value) : nullptr;
  if (!bias) return false;
  for (int axis = 0; axis < bias->shape().rank(); ++axis)
    if (bias->shape()[axis] == bias->num_elements() && bias->num_elements() > 1) layer.axes[graph.value(value).name] = axis;
  return true;
}

/// Returns true if the node multiplies by weights, so that it may be the last layer. Sets `axis` to the weights' axis of classes.
bool multiplies(const Graph& graph, const Node& node, int& axis) {
  if (is_product(node)) {
    axis = node.attributes.get_int("transB") != 0 ? 0 : 1;
    return graph.type(node.inputs[1]).has_rank() && graph.type(node.inputs[1]).rank() == 2;
  }
  axis = 0;
  return node.is("Conv") && node.attributes.get_int("group", 1) == 1 && graph.type(node.inputs[1]).has_rank();
}

Layer find_layer(const Graph& graph, const TrainerOptions& options) {
  Layer layer;
  const ValueId output = find_output(graph, options.output);
  for (ValueId value = output;;) {
    const Value& made = graph.value(value);
    if (made.kind != Value::Kind::computed)
      throw Error(ErrorCode::not_implemented,
                  fmt::format("head: no layer of constant weights makes the output {}", describe_output(graph, output)));
    layer.behind.insert(made.name);
    const Node& node = graph.node(made.producer);
    int axis = -1;
    bool transposed = false;
    if (multiplies(graph, node, axis)) {
      if (const ValueId weight = initializer_of(graph, node.inputs[1], transposed); weight != kNoValue) {
        if (node.has_input(2)) take_bias(graph, node.inputs[2], layer);
        layer.node = node.id, layer.weight = graph.value(weight).name;
        layer.axes[layer.weight] = transposed ? 1 - axis : axis;
        layer.classes = graph.constant_tensor(weight)->shape()[layer.axes[layer.weight]];
        return layer;
      }
    }
    // Goes on to the node's only computed operand. An addition of a constant bias is taken as part of the layer.
    std::vector<ValueId> computed;
    for (size_t i = 0; i < static_cast<size_t>(node.num_formal_inputs); ++i)
      if (node.has_input(i) && !(node.is("Add") && take_bias(graph, node.inputs[i], layer)) && !graph.value(node.inputs[i]).is_constant())
        computed.push_back(node.inputs[i]);
    if (computed.size() != 1 || !node.bodies.empty())
      throw Error(
          ErrorCode::not_implemented,
          fmt::format("head: {} stands between the output {} and the last layer, and no number of classes is known to pass through it",
                      describe(node), describe_output(graph, output)));
    value = computed[0];
  }
}

void check_layer(const Graph& graph, const Layer& layer, const onnx::GraphDef& def) {
  for (const auto& [name, axis] : layer.axes) {
    const Value& value = graph.value(graph.find_value(name));
    const bool is_initializer =
        std::any_of(def.initializers.begin(), def.initializers.end(), [&, &name = name](const auto& each) { return each.name == name; });
    const Tensor& tensor = *graph.constant_tensor(graph.find_value(name));
    if (!is_initializer || tensor.dtype() != DType::float32)
      throw Error(ErrorCode::not_implemented, fmt::format("head: \"{}\" of the {} is {}, not a float32 initializer", name,
                                                          describe(graph.node(layer.node)), describe(tensor)));
    if (value.uses.size() != 1)
      throw Error(ErrorCode::not_implemented,
                  fmt::format("head: \"{}\" of the {} has {} readers; a new one would be another weight for all of them", name,
                              describe(graph.node(layer.node)), value.uses.size()));
    if (tensor.shape()[axis] != layer.classes)
      throw Error(ErrorCode::not_implemented, fmt::format("head: \"{}\" is {}, the layer \"{}\" has {} classes", name,
                                                          to_string(tensor.shape()), layer.weight, layer.classes));
  }
}

/// Replaces the number of classes in the constant target shape of a Reshape that follows the layer.
void change_shape(onnx::GraphDef& def, const std::string& name, int64_t from, int64_t to) {
  auto changed = [&](Tensor& value) {
    if (value.dtype() != DType::int64) return;
    value = value.clone();
    std::replace(value.data<int64_t>(), value.data<int64_t>() + value.num_elements(), from, to);
  };
  for (onnx::TensorDef& initializer : def.initializers)
    if (initializer.name == name) changed(initializer.value);
  for (onnx::NodeDef& node : def.nodes)
    if (node.op_type == "Constant" && !node.outputs.empty() && node.outputs[0] == name)
      for (onnx::AttributeDef& attribute : node.attributes)
        if (attribute.name == "value" && attribute.t) changed(attribute.t->value);
}

/// Sets the declared shapes of outputs that are computed from the layer to their inferred shapes.
void declare_outputs(onnx::ModelDef& def, const Layer& layer, const Model& made) {
  const std::unique_ptr<Graph> graph = upgraded_graph(made);
  for (onnx::ValueInfoDef& output : def.graph.outputs) {
    if (!layer.behind.contains(output.name)) continue;
    const auto at = std::find(graph->output_names.begin(), graph->output_names.end(), output.name) - graph->output_names.begin();
    const Type& type = graph->type(graph->outputs[static_cast<size_t>(at)]);
    if (!type.has_rank()) continue;
    output.type.shape.emplace();
    for (const Dim& dim : *type.shape) {
      onnx::DimDef& extent = output.type.shape->emplace_back();
      if (dim.is_const()) extent.kind = onnx::DimDef::Kind::value, extent.value = dim.value();
    }
  }
}

}  // namespace

Model with_head(const Model& model, const TrainerOptions& options) {
  if (options.head_classes == 0) return model;
  const std::unique_ptr<Graph> graph = upgraded_graph(model);
  const Layer layer = find_layer(*graph, options);
  onnx::ModelDef def = model.impl().def;
  check_layer(*graph, layer, def.graph);
  const int64_t inputs = graph->constant_tensor(graph->find_value(layer.weight))->num_elements() / std::max<int64_t>(layer.classes, 1);
  const double bound = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(inputs, 1)));
  RandomNumbers random(options.initialization_seed);
  for (onnx::TensorDef& initializer : def.graph.initializers) {
    const auto found = layer.axes.find(initializer.name);
    if (found == layer.axes.end()) continue;
    initializer.shape[found->second] = options.head_classes;
    initializer.value = Tensor(DType::float32, initializer.shape);
    initializer.is_external = false;
    for (float& element : initializer.value.span<float>()) element = static_cast<float>(bound * random.uniform());
  }
  for (NodeId id = graph->next(layer.node); id != kNoNode; id = graph->next(id)) {
    const Node& node = graph->node(id);
    if (node.is("Reshape") && node.has_output(0) && layer.behind.contains(graph->value(node.outputs[0]).name))
      change_shape(def.graph, graph->value(node.inputs[1]).name, layer.classes, options.head_classes);
  }
  def.graph.value_info.clear();
  for (onnx::ValueInfoDef& output : def.graph.outputs)
    if (layer.behind.contains(output.name)) output.type.shape.reset();
  try {
    declare_outputs(def, layer, make_model(def, {}));
    return make_model(std::move(def), {});
  } catch (const Error& error) {
    throw Error(ErrorCode::invalid_argument, fmt::format("head: the model does not fit {} classes in place of {}: {}", options.head_classes,
                                                         layer.classes, error.what()));
  }
}

void check_head(const Model& model, const TrainerOptions& options, const std::vector<std::string>& trained) {
  if (options.head_classes == 0) return;
  for (const auto& [name, axis] : find_layer(*upgraded_graph(model), options).axes)
    if (std::find(trained.begin(), trained.end(), name) == trained.end())
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("head: \"{}\" is new, begins with random numbers and would not be trained; name it in `parameters`, and not in "
                      "`frozen`",
                      name));
}

}  // namespace treadle::train
