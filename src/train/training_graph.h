// From a model for inference to graphs that train it.
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "session/model.h"
#include "train/lora.h"
#include "treadle/train.h"

namespace treadle::train {

/// Which initializers change while the graph is in use: names, or patterns (*, ?, [...]).
struct Selection {
  std::vector<std::string> parameters;  ///< empty: every float32 initializer of rank 1 or more
  std::vector<std::string> frozen;
  std::vector<std::string> states;  ///< inputs of the model that hold running statistics
  bool unbiased_variance = false;   ///< of running statistics
  /// They are values of kind parameter, for a graph that does not update them; otherwise inputs.
  bool as_parameters = false;
  /// Inputs and initializers that are of kind parameter in any case, with these elements. All others stay constants, but in training.
  const NamedTensors* held = nullptr;
  const SessionOptions* session = nullptr;  ///< whose config entry treadle.storage gives inputs storage types; null: all are dense
  LoraOptions lora = {};                    ///< with a rank, adapters are parameters, too; no `parameters` then means no others
};

/// A graph of the model whose parameters and states are inputs, or values of kind parameter, and what the steps after it need to find.
struct TrainingGraph {
  struct State {
    std::string name;  ///< of the initializer
    ValueId updated;   ///< in training
  };
  std::unique_ptr<Graph> graph;
  std::vector<std::string> parameters;
  std::vector<State> states;
  std::vector<Adapter> adapters;
  bool explicit_parameters = false;
  std::vector<ValueId> read;  ///< inputs that the model's nodes read, before simplify_forward() found that it can do without some
  /// Nodes that there have been, for optimise(); empty if `precision` has no patterns that may name them.
  std::vector<std::string> nodes;

  ValueId value(std::string_view name) const { return graph->find_value(name); }
};

/// A node behind those that are there, with a name of its own. @return its first output
ValueId appended(Graph& graph, NodeSpec spec);

/// The model with an initializer for every running statistic that it takes from another one through an Identity: PyTorch's exporter writes
/// equal initial values once, which for parameters that are trained would tie what is none of each other's business. If no float32
/// initializer has more than one element, Constant nodes that have become initializers: other exporters write weights so.
Model with_own_initializers(const Model& model);

/// The model that is trained: with such statistics, and what the options change of the model itself.
Model prepared(const Model& model, const TrainerOptions& options);

/// Imports and upgrades. Floating-point initializers are taken out of the constants: those selected are parameters, BatchNormalization's
/// running statistics are states. A BatchNormalization whose statistics are inputs of the model that are not selected stays as it is.
/// @param training  BatchNormalization and Dropout train.
TrainingGraph make_training_graph(const Model& model, const Selection& selection, bool training);

/// Adds the loss and its labels (an input), as the options say. @return the loss, a scalar.
/// @param weight  null, or becomes what the loss, a mean, is divided by: elements, samples, or the weights of the labels that count.
ValueId add_loss(Graph& graph, ValueId output, const TrainerOptions& options, ValueId* weight = nullptr);
std::string_view name_of(Loss loss);

/// What an optimiser may do to a forward part that will be differentiated: several operators become one whose gradient is one node, too.
/// `max_patches` counts anew when the joint graph is optimised.
/// @param kept  values that are asked for later, and what they have become afterwards; `training.states` likewise
void simplify_forward(TrainingGraph& training, std::vector<ValueId>& kept, const SessionOptions& options);

/// Appends the backward pass of `loss` (or of `ys` with gradients `grad_ys`). Parameters without a gradient become constants again.
/// @return the gradients, one per remaining parameter, then one per value of `more`: zeros where nothing flows back to it, or kNoValue.
/// @throws Error(invalid_argument) for a parameter without a gradient that was named explicitly.
std::vector<ValueId> add_backward(TrainingGraph& training, const Model& model, std::span<const ValueId> ys,
                                  std::span<const ValueId> grad_ys, std::span<const ValueId> more = {}, bool with_zeros = true);

using Outputs = std::vector<std::pair<std::string, ValueId>>;
/// Makes these the graph's outputs, and drops what they do not need. @param read  inputs that stay nevertheless
void set_outputs(Graph& graph, const Outputs& outputs, std::span<const ValueId> read = {});
/// Optimises as the options say. Values of kind parameter are packed when they have changed; updates go last, as they write over what
/// others read.
/// @param nodes  those of TrainingGraph, which the patterns of `precision` may name, like those of the optimised graph; none: the patterns
///               have been checked. @throws Error(invalid_argument) for a pattern that no node has.
void optimise(Graph& graph, const SessionOptions& options, std::vector<std::string> nodes = {});

/// Whether the name is this one, or fits the pattern, whose * stands for dots and slashes, too.
bool matches(const std::string& pattern, const std::string& name);
bool matches_any(std::span<const std::string> patterns, const std::string& name);

/// The output of the model with this name (empty: the first), or another value. @throws Error(not_found)
ValueId find_output(const Graph& graph, const std::string& name);

/// Null: the model has none of the name.
const onnx::TensorDef* find_initializer(const Model& model, const std::string& name);

/// Initial values of the initializers named, in memory that may be written.
NamedTensors copy_initializers(const Model& model, const std::vector<std::string>& names);

/// The model as read with other initializers, encoded.
std::string encode_with(const Model& model, std::span<const NamedTensors* const> values, const Metadata& metadata);
/// The same, written to a file by way of a temporary name.
void save_with(const Model& model, std::span<const NamedTensors* const> values, const Metadata& metadata, const std::string& path);

/// Names of the inputs that training adds.
inline constexpr std::string_view kLabels = "treadle.labels", kLearningRate = "treadle.learning_rate", kUpdateCount = "treadle.update",
                                  kLossScale = "treadle.loss_scale";

}  // namespace treadle::train
