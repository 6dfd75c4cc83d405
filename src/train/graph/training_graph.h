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
  bool unbiased_variance = false;   ///< update running variances by the unbiased variance of the batch
  /// True: selected initializers become values of kind `parameter`, for a graph that does not update them. False: they become inputs.
  bool as_parameters = false;
  /// Tensors of the caller. Inputs and initializers with the names of these tensors become values of kind `parameter` that use them. If
  /// given, all other initializers stay constants, except in training.
  const NamedTensors* held = nullptr;
  /// The session's options. Their config entry treadle.storage may declare inputs sparse. Null: all inputs are dense.
  const SessionOptions* session = nullptr;
  LoraOptions lora = {};  ///< with a rank above 0, adapters are trained, and an empty `parameters` selects no other initializers
};

/// A graph of the model in which parameters and states are inputs or values of kind `parameter`, and data for building it further.
struct TrainingGraph {
  struct State {
    std::string name;  ///< name of the running statistic's initializer
    ValueId updated;   ///< the statistic's new value; set in graphs for training
  };
  std::unique_ptr<Graph> graph;
  std::vector<std::string> parameters;
  std::vector<State> states;
  std::vector<Adapter> adapters;
  bool explicit_parameters = false;
  std::vector<ValueId> read;  ///< inputs that nodes read before simplify_forward(), which may remove all uses of some
  /// The nodes' names before simplification, for checking name patterns of the option `precision`; empty if it has no such patterns.
  std::vector<std::string> nodes;

  ValueId value(std::string_view name) const { return graph->find_value(name); }
};

/// Appends a node, with a unique name made from spec.name.
NodeId append_node(Graph& graph, NodeSpec spec);
/// Appends a node. @return its first output
ValueId appended(Graph& graph, NodeSpec spec);

/// Returns the model's graph, upgraded to the newest opset and with inferred types.
std::unique_ptr<Graph> upgraded_graph(const Model& model);

/// Gives each running statistic a separate initializer. PyTorch's exporter stores statistics with equal initial values once, and adds
/// Identity nodes for the others; training would wrongly keep these equal. If no float32 initializer has more than one element, the
/// exporter has stored weights in Constant nodes, which become initializers.
Model with_own_initializers(const Model& model);

/// Returns the model to be trained: applies with_own_initializers() and the changes of the model that the options ask for.
Model prepared(const Model& model, const TrainerOptions& options);

/// Imports and upgrades the model. Its selected float32 initializers become parameters, and the running statistics of BatchNormalization
/// nodes become states. A BatchNormalization whose statistics are inputs that are not selected is left unchanged.
/// @param training  whether BatchNormalization and Dropout are set to training mode.
TrainingGraph make_training_graph(const Model& model, const Selection& selection, bool training);

/// Applies the optimizer passes that are allowed before differentiation. These fuse operators only into operators whose gradient is also
/// one node. The limit `max_patches` applies to these passes and, separately, to later ones.
/// @param kept  values that are needed later; set to the values that replace them, as is `training.states`
void simplify_forward(TrainingGraph& training, std::vector<ValueId>& kept, const SessionOptions& options);

/// Appends the backward pass of the outputs `ys`, whose gradients are `grad_ys`. Parameters without a gradient become constants again.
/// @return the gradients: one per remaining parameter, then one per value of `more`. For a value of `more` on which no output depends, it
/// is zeros if `with_zeros`, otherwise kNoValue.
/// @throws Error(invalid_argument) if a parameter has no gradient but was selected by name.
std::vector<ValueId> add_backward(TrainingGraph& training, const Model& model, std::span<const ValueId> ys,
                                  std::span<const ValueId> grad_ys, std::span<const ValueId> more = {}, bool with_zeros = true);

using Outputs = std::vector<std::pair<std::string, ValueId>>;
/// Sets the graph's outputs, and removes nodes and inputs that they do not need.
/// @param read  inputs that are kept even if no node reads them
void set_outputs(Graph& graph, const Outputs& outputs, std::span<const ValueId> read = {});
/// Optimizes the graph as the options say. Weights of kind `parameter` are packed again when they have changed. Updates run last, because
/// they overwrite values that other nodes read.
/// @param nodes    names that patterns of the option `precision` may match besides those of the optimized graph (TrainingGraph::nodes);
/// empty: the patterns have been checked before.
/// @param devices  the devices that will run the graph; null: the graph is written to a file instead.
/// @throws Error(invalid_argument) for a pattern that matches no node.
void optimize(Graph& graph, const SessionOptions& options, const SessionDevices* devices, std::vector<std::string> nodes = {});

/// Returns the model's output with this name (empty: the first output), or another value of this name. @throws Error(not_found)
ValueId find_output(const Graph& graph, const std::string& name);

/// Returns the initializer of this name, or null if the model has none.
const onnx::TensorDef* find_initializer(const Model& model, const std::string& name);

/// Returns copies of the named initializers, in writable memory.
NamedTensors copy_initializers(const Model& model, const std::vector<std::string>& names);

/// Encodes the original model. Initializers whose names are in `values` get the elements of these tensors.
std::string encode_with(const Model& model, std::span<const NamedTensors* const> values, const Metadata& metadata);
/// Like encode_with(), but writes the model to a file, which has a temporary name until it is complete.
void save_with(const Model& model, std::span<const NamedTensors* const> values, const Metadata& metadata, const std::string& path);

/// Names of the inputs that training graphs have in addition to the model's inputs.
inline constexpr std::string_view kLabels = "treadle.labels", kLearningRate = "treadle.learning_rate", kUpdateCount = "treadle.update",
                                  kLossScale = "treadle.loss_scale";

}  // namespace treadle::train
