// Builds a training graph from a model that was exported for inference.
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "session/devices.h"
#include "session/model.h"
#include "train/graph/lora.h"
#include "treadle/train.h"

namespace treadle::train {

/// Selects the initializers that change while the graph is in use, by names or patterns (* and ?).
struct Selection {
  std::vector<std::string> parameters;  ///< empty: every float32 initializer of rank 1 or more
  std::vector<std::string> frozen;
  std::vector<std::string> states;  ///< names of inputs of the model that hold running statistics
  bool unbiased_variance = false;   ///< update running variances with the unbiased batch variance
  /// True: selected initializers become values of kind parameter, for a graph that does not update them. False: they become inputs.
  bool as_parameters = false;
  /// Inputs and initializers that become values of kind parameter in any case, with these elements. If given, all other initializers stay
  /// constants, except in training.
  const NamedTensors* held = nullptr;
  /// Options whose config entry treadle.storage gives inputs storage types; null: all inputs are dense.
  const SessionOptions* session = nullptr;
  LoraOptions lora = {};  ///< with a rank above 0, adapters are parameters, and an empty `parameters` then selects nothing else
};

/// A graph of the model whose parameters and states are inputs or values of kind parameter, with the data that later build steps need.
struct TrainingGraph {
  struct State {
    std::string name;  ///< name of the initializer
    ValueId updated;   ///< the new value of the parameter; set in training
  };
  std::unique_ptr<Graph> graph;
  std::vector<std::string> parameters;
  std::vector<State> states;
  std::vector<Adapter> adapters;
  bool explicit_parameters = false;
  std::vector<ValueId> read;  ///< inputs that the model's nodes read before simplify_forward(), which may make some unnecessary
  /// The nodes' names before simplification, which optimize() needs; empty if no pattern of `precision` could match them.
  std::vector<std::string> nodes;

  ValueId value(std::string_view name) const { return graph->find_value(name); }
};

/// Appends a node, with a unique name made from spec.name.
NodeId append_node(Graph& graph, NodeSpec spec);
/// Appends a node. @return its first output
ValueId appended(Graph& graph, NodeSpec spec);

/// Returns the model's graph as runs need it: upgraded to the newest opset, with inferred types.
std::unique_ptr<Graph> upgraded_graph(const Model& model);

/// Gives each trained value a separate initializer. PyTorch's exporter stores equal initial values once, and connects the others through an
/// Identity. Training would then tie running statistics that are independent, so each gets a copy. If no float32 initializer has more than
/// one element, the exporter has stored weights in Constant nodes, which become initializers.
Model with_own_initializers(const Model& model);

/// Returns the model to be trained: with_own_initializers(), and the changes to the model that the options ask for.
Model prepared(const Model& model, const TrainerOptions& options);

/// Imports and upgrades the model, and makes its selected float32 initializers parameters and BatchNormalization's running statistics
/// states. A BatchNormalization whose statistics are inputs of the model, and not selected, is left as it is.
/// @param training  BatchNormalization and Dropout behave as in training.
TrainingGraph make_training_graph(const Model& model, const Selection& selection, bool training);

/// Applies the passes that are allowed before differentiation: these passes fuse operators only into operators whose gradient is also one
/// node. `max_patches` is counted anew when the joint graph is optimised.
/// @param kept  values needed later; updated to what replaces them, like `training.states`
void simplify_forward(TrainingGraph& training, std::vector<ValueId>& kept, const SessionOptions& options);

/// Appends the backward pass of `ys` with the output gradients `grad_ys`. Parameters without a gradient become constants again.
/// @return the gradients: one per remaining parameter, then one per value of `more`. A value of `more` without a gradient gets zeros if
/// `with_zeros`, otherwise kNoValue.
/// @throws Error(invalid_argument) for a parameter without a gradient that was named explicitly.
std::vector<ValueId> add_backward(TrainingGraph& training, const Model& model, std::span<const ValueId> ys,
                                  std::span<const ValueId> grad_ys, std::span<const ValueId> more = {}, bool with_zeros = true);

using Outputs = std::vector<std::pair<std::string, ValueId>>;
/// Sets the graph's outputs, and removes nodes and inputs that they do not need.
/// @param read  inputs that stay in any case
void set_outputs(Graph& graph, const Outputs& outputs, std::span<const ValueId> read = {});
/// Optimises the graph as the options say. Weights of kind parameter are packed again when they have changed. Updates run last, because
/// they overwrite values that other nodes read.
/// @param nodes  TrainingGraph::nodes, which the patterns of `precision` may match besides the optimised graph's nodes; empty: the patterns
/// have been checked before.
/// @param devices  on which the graph will run; null: none, as it is written to a file.
/// @throws Error(invalid_argument) for a pattern that matches no node.
void optimize(Graph& graph, const SessionOptions& options, const SessionDevices* devices, std::vector<std::string> nodes = {});

/// Returns the model's output with this name (empty: the first output), or another value of this name. @throws Error(not_found)
ValueId find_output(const Graph& graph, const std::string& name);

/// Returns the initializer. Null: the model has none of this name.
const onnx::TensorDef* find_initializer(const Model& model, const std::string& name);

/// Returns copies of the named initializers, in writable memory.
NamedTensors copy_initializers(const Model& model, const std::vector<std::string>& names);

/// Encodes the model as read, with other elements for its initializers.
std::string encode_with(const Model& model, std::span<const NamedTensors* const> values, const Metadata& metadata);
/// Writes that model to a file, which has a temporary name until it is complete.
void save_with(const Model& model, std::span<const NamedTensors* const> values, const Metadata& metadata, const std::string& path);

/// Names of the inputs that training adds to the model's.
inline constexpr std::string_view kLabels = "treadle.labels", kLearningRate = "treadle.learning_rate", kUpdateCount = "treadle.update",
                                  kLossScale = "treadle.loss_scale";

}  // namespace treadle::train
