// The graphs that a trainer runs: steps, updates, gradients, and those that change nothing.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "train/artifacts.h"
#include "train/data_parallel.h"
#include "train/loss_scale.h"
#include "train/row_gradients.h"
#include "train/trained_values.h"
#include "train/training_graph.h"
#include "treadle/profile.h"
#include "treadle/train.h"

namespace treadle::train {

/// All parameters as one value of the graph (TrainerOptions::fused_update).
inline constexpr std::string_view kAllParameters = "treadle.parameters";

/// The forward part with its loss, and the backward one.
struct Differentiated {
  TrainingGraph training;
  DataParallel::StepValues values;
  std::set<std::string> transposed;  ///< weights that a product reads so

  Graph& graph() const { return *training.graph; }
};

struct TrainerGraphs : TrainedValues {
  TrainerGraphs(const Model& source, const TrainerOptions& given);
  /// With graphs that have been made before.
  explicit TrainerGraphs(std::unique_ptr<const Artifacts> artifacts);
  ~TrainerGraphs();

  // What a trainer asks for. Those of artifacts are optimised, and have no other values for who wants them.

  /// The first graph: it chooses what is trained, and makes the values that steps change.
  /// @param nodes  becomes what TrainingGraph has under that name
  std::unique_ptr<Graph> first_step_graph(const SessionOptions& session, std::vector<std::string>& nodes);
  /// The loss, running statistics, and sums of gradients or updates.
  /// @param simplified  false: every value of the model is there.
  std::unique_ptr<Graph> step_graph(const SessionOptions& session, bool simplified) const;
  /// The update from accumulated gradients alone, which are fed.
  std::unique_ptr<Graph> update_graph() const;
  std::unique_ptr<Graph> gradient_graph(const SessionOptions& session, bool simplified) const;
  /// What a graph without updates computes. It reads parameters and states as values of kind parameter.
  struct Inference {
    bool loss = false, outputs = false;
  };
  std::unique_ptr<Graph> inference_graph(Inference wanted) const;

  // The same of artifacts.
  std::unique_ptr<Graph> first_opened_step_graph();
  std::unique_ptr<Graph> opened_step_graph() const;

  // How they are made of the model.

  /// What the first graph chooses, and later ones by the names that it has chosen.
  /// @param training  otherwise parameters are values of that kind.
  Selection selection(bool training = true) const;
  /// @param weight  null, or becomes the loss's weight among those of other ranks.
  TrainingGraph with_loss(bool training, ValueId& loss, ValueId* weight = nullptr) const;
  void add_updates(Graph& graph, const std::vector<std::string>& names, std::vector<ParameterGradient> grads, Outputs& outputs) const;
  bool joins_parameters() const { return options.accumulation_steps == 1 && options.fused_update && !trained.empty(); }

  /// @param simplified  false: every value of the model is there.
  Differentiated differentiate(const SessionOptions& session, bool simplified) const;
  Outputs add_step_outputs(Differentiated& made) const;

  /// Parameters, running statistics and the optimizer's state as they are before the first step.
  void make_values(const Differentiated& made);
  /// What is kept for each parameter beside it, which begins as zeros or, an average, as the parameter.
  void make_optimizer_state();
  /// Whether a part of the optimizer's state is a sum of gradients.
  bool is_sum(const std::string& state) const;
  /// What a profile says of them. Those that lie side by side are views of one block.
  void add_held(std::vector<MemoryHolding>& held) const;

  /// What ranks must have in common to compute one step together: nodes, parameters, settings.
  std::string description() const;

  const std::unique_ptr<const Artifacts> opened;  // null: graphs are made of the model
  Model model;
  TrainerOptions options;
  NamedTensors optimizer_state;
  std::vector<std::string> output_names, trained;
  std::vector<Adapter> adapters;
  std::unique_ptr<DataParallel> ranks;  // null: alone
  std::unique_ptr<LossScaler> scaler;   // null: the loss is not scaled
};

}  // namespace treadle::train
