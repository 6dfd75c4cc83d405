// The implementation of Trainer: its graphs, its values, its position, and its runners.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "session/runtime.h"
#include "train/artifacts/artifacts.h"
#include "train/graph/data_parallel.h"
#include "train/run/runner.h"
#include "train/run/step_values.h"
#include "train/trainer/progress.h"
#include "train/trainer/runners.h"
#include "train/trainer/trainer_graphs.h"
#include "treadle/train.h"

namespace treadle::train {

struct Trainer::Impl : Runtime {
  Impl(const Model& source, const TrainerOptions& given);
  explicit Impl(std::unique_ptr<const Artifacts> artifacts);
  ~Impl() override;

  profile::ProfilePlan profile_plan(const Profiling& of) const override;
  CacheStatistics cache_statistics() const override;

  double train_step(const Feeds& feeds, const Datum& labels, const RunOptions* run_options);
  /// Runs a graph that changes no values. If a step runs concurrently, the graph sees the parameters either before or after this step.
  /// @param exchange  for communication with other ranks; null: the run involves no other ranks.
  std::vector<Datum> read(const Runner& runner, const Feeds& feeds, const Datum& labels, const RunOptions* run_options,
                          Exchange* exchange = nullptr);
  const Runner& gradients();
  const Runner& inference(TrainerGraphs::Inference wanted);
  /// Returns the weights of the model without adapters: the adapters' products are added to them.
  NamedTensors merged_parameters() const;

  TrainerGraphs graphs;
  StepValues& values = graphs.values;
  Progress progress{graphs.options, graphs.scaler.get()};
  Runners runners;

 private:
  void begin(const Model& source);
  void begin_together();
  void make_step();
  void make_update();
  /// Runs the last step of a gradient accumulation, followed by the update.
  std::vector<Datum> step_and_update(const Feeds& feeds, const Datum& labels, const Call& call);
  std::vector<Datum> run(const Runner& runner, std::vector<Datum> arranged, const Call& call, std::span<const Datum> bound = {},
                         std::span<const exec::OutputMemory> memory = {});
  /// Checks a feed that is not an input of the graph being run. @throws Error(invalid_argument) unless another graph of the trainer has
  /// such an input
  void check_unread(const std::string& name) const;
};

}  // namespace treadle::train
