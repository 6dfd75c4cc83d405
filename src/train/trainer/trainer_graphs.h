// Builds the graphs that a trainer runs: steps, updates, gradients, evaluation and prediction.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "train/artifacts/artifacts.h"
#include "train/graph/data_parallel.h"
#include "train/graph/loss_scale.h"
#include "train/graph/row_gradients.h"
#include "train/graph/training_graph.h"
#include "train/run/step_values.h"
#include "treadle/train.h"

namespace treadle::train {

/// A graph with the forward pass, the loss and the backward pass.
struct Differentiated {
  TrainingGraph training;
  DataParallel::StepValues values;
  std::set<std::string> transposed;  ///< weights that are stored as [inputs, outputs]

  Graph& graph() const { return *training.graph; }
};

struct TrainerGraphs {
  TrainerGraphs(const Model& source, const TrainerOptions& given);
  /// Takes the graphs from training artifacts instead of building them.
  explicit TrainerGraphs(std::unique_ptr<const Artifacts> artifacts);
  ~TrainerGraphs();

  // The graphs that a trainer runs. Graphs from artifacts are optimized already, so `simplified` has no effect on them.

  /// Returns the graph of a step, like step_graph(). Must be called first: it selects the trained parameters, and creates the tensors that
  /// steps change. @param nodes  set to TrainingGraph::nodes
  std::unique_ptr<Graph> first_step_graph(const SessionOptions& session, std::vector<std::string>& nodes);
  /// Returns the graph of a step. It computes the loss, running statistics, and either updated parameters or accumulated gradients.
  /// @param simplified  false: keep every value of the model, for monitors.
  std::unique_ptr<Graph> step_graph(const SessionOptions& session, bool simplified) const;
  /// Returns a graph that updates the parameters from accumulated gradients, which must be fed.
  std::unique_ptr<Graph> update_graph() const;
  std::unique_ptr<Graph> gradient_graph(const SessionOptions& session, bool simplified) const;
  /// Selects what a graph for inference computes. Such a graph reads parameters and states as values of kind `parameter`.
  struct Inference {
    bool loss = false, outputs = false;
  };
  std::unique_ptr<Graph> inference_graph(Inference wanted) const;

  // These functions return step graphs that are read from artifacts.
  std::unique_ptr<Graph> first_opened_step_graph();
  std::unique_ptr<Graph> opened_step_graph() const;

  // Parts from which the graphs are built.

  /// Returns which initializers are parameters: for the first graph as the options say, for later graphs those chosen for the first.
  /// @param training  false: parameters are values of kind `parameter` instead of inputs.
  Selection selection(bool training = true) const;
  /// Returns the model's graph with the loss added. @param weight  if not null, set to the weight of this rank's loss in the ranks' mean.
  TrainingGraph with_loss(bool training, ValueId& loss, ValueId* weight = nullptr) const;
  void add_updates(Graph& graph, const std::vector<std::string>& names, std::vector<ParameterGradient> grads, Outputs& outputs) const;
  bool joins_parameters() const { return options.accumulation_steps == 1 && options.fused_update && !trained.empty(); }

  /// @param simplified  false: keep every value of the model.
  Differentiated differentiate(const SessionOptions& session, bool simplified) const;
  Outputs add_step_outputs(Differentiated& made) const;

  /// Creates parameters, running statistics and optimizer state, with their initial values.
  void make_values(const Differentiated& made);

  /// Returns a text that describes nodes, parameters and settings. Ranks can train together only if their texts are equal.
  std::string description() const;

  const std::unique_ptr<const Artifacts> opened;  // source of the graphs; null: graphs are built from the model
  Model model;
  TrainerOptions options;
  StepValues values;
  std::vector<std::string> output_names, trained;
  std::vector<Adapter> adapters;
  std::unique_ptr<DataParallel> ranks;  // null if there is only one rank
  std::unique_ptr<LossScaler> scaler;   // null if the loss is not scaled
};

}  // namespace treadle::train
