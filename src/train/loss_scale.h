// The scale of the loss in training with float16: how it stands in the graph, and how it moves.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/overflow_report.h"
#include "graph/graph.h"
#include "train/row_gradients.h"
#include "treadle/train.h"

namespace treadle::train {

/// Whether `precision` has products in float16.
bool scales_loss(const TrainerOptions& options);
/// With what it is by default.
std::vector<std::pair<std::string, std::string>> loss_scaling_settings(const TrainerOptions& options);

class LossScaler {
 public:
  explicit LossScaler(const TrainerOptions& options);

  /// The gradient that the backward pass of the loss begins with: the scale, an input of the graph.
  ValueId head(Graph& graph, ValueId loss) const;
  /// Gradients of the loss itself. @param reports  a step ends where one is not finite.
  void unscale(Graph& graph, ValueId loss, std::span<ParameterGradient> gradients, bool reports) const;

  /// The nodes of a step that was written to a file report to this scaler.
  void take_reports(Graph& graph) const;

  const Tensor& scalar() const { return scalar_; }
  void begin_step() { report_.begin_step(); }
  /// Of a step that failed: its loss if a gradient was not finite. The scale has backed off then, and the step is counted as skipped.
  std::optional<double> skipped();
  /// A step has gone well. @param updated  with an update of the parameters
  void succeeded(bool updated);
  const LossScale& state() const { return state_; }
  void set_state(const LossScale& state);

 private:
  const double growth_factor_, backoff_factor_;
  const int64_t growth_interval_;
  LossScale state_;
  Tensor scalar_;  // what steps read
  OverflowReport report_;
};

}  // namespace treadle::train
