// Loss scaling for training with float16: how the graph uses the scale, and how it is adjusted.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/ranks/overflow_report.h"
#include "graph/graph.h"
#include "train/graph/row_gradients.h"
#include "treadle/train.h"

namespace treadle::train {

/// Returns true if `precision` computes products in float16.
bool scales_loss(const TrainerOptions& options);
/// Returns the settings of the scale by name, with defaults filled in.
std::vector<std::pair<std::string, std::string>> loss_scaling_settings(const TrainerOptions& options);

class LossScaler {
 public:
  explicit LossScaler(const TrainerOptions& options);

  /// Returns the initial gradient of the backward pass: the scale, which is an input of the graph.
  ValueId head(Graph& graph, ValueId loss) const;
  /// Divides the gradients by the scale.
  /// @param reports  a gradient that is not finite ends the step
  void unscale(Graph& graph, ValueId loss, std::span<ParameterGradient> gradients, bool reports) const;

  /// Connects the reporting nodes of a step that was read from a file to this scaler.
  void take_reports(Graph& graph) const;

  const Tensor& scalar() const { return scalar_; }
  void begin_step() { report_.begin_step(); }
  /// Must be called after a step that failed. If a gradient was not finite: reduces the scale, counts the step as skipped, and returns its
  /// loss. Otherwise returns nullopt.
  std::optional<double> skipped();
  /// Must be called after a successful step. @param updated  the step updated the parameters
  void succeeded(bool updated);
  const LossScale& state() const { return state_; }
  void set_state(const LossScale& state);

 private:
  const double growth_factor_, backoff_factor_;
  const int64_t growth_interval_;
  LossScale state_;
  Tensor scalar_;  // the current scale, which steps read
  OverflowReport report_;
};

}  // namespace treadle::train
