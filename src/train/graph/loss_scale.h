// Loss scaling for training with float16: adds the scale to training graphs, and adjusts it after each step.
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

/// Returns true if the option `precision` selects matrix products in float16, which need loss scaling.
bool scales_loss(const TrainerOptions& options);
/// Returns the settings of loss scaling by name, with defaults filled in.
std::vector<std::pair<std::string, std::string>> loss_scaling_settings(const TrainerOptions& options);

class LossScaler {
 public:
  explicit LossScaler(const TrainerOptions& options);

  /// Returns the initial gradient of the backward pass: the scale, which is an input of the graph.
  ValueId head(Graph& graph, ValueId loss) const;
  /// Divides the gradients by the scale.
  /// @param reports  true: a gradient that is not finite makes the step fail, and skipped() then reduces the scale
  void unscale(Graph& graph, ValueId loss, std::span<ParameterGradient> gradients, bool reports) const;

  /// Makes nodes of a step graph that was read from a file report overflowing gradients to this scaler.
  void take_reports(Graph& graph) const;

  const Tensor& scalar() const { return scalar_; }
  void begin_step() { report_.begin_step(); }
  /// Must be called after a step that failed. If it failed because a gradient was not finite: reduces the scale, counts the step as
  /// skipped, and returns the step's loss. Otherwise returns nullopt.
  std::optional<double> skipped();
  /// Must be called after a successful step. @param updated  whether the step updated the parameters
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
