// Graphs of a trainer that was opened from training artifacts.
#include <utility>

#include "core/values/allocation.h"
#include "train/graph/joined_parameters.h"
#include "train/trainer/trainer_graphs.h"

namespace treadle::train {

TrainerGraphs::TrainerGraphs(std::unique_ptr<const Artifacts> artifacts)
    : opened(std::move(artifacts)), model(opened->model()), options(opened->description().options) {
  for (const ValueInfo& info : model.outputs()) output_names.push_back(info.name);
  if (scales_loss(options)) scaler = std::make_unique<LossScaler>(options);
}
TrainerGraphs::~TrainerGraphs() = default;

std::unique_ptr<Graph> TrainerGraphs::opened_step_graph() const {
  std::unique_ptr<Graph> graph = opened->step();
  if (scaler) scaler->take_reports(*graph);
  return graph;
}

std::unique_ptr<Graph> TrainerGraphs::first_opened_step_graph() {
  const ArtifactsDescription& description = opened->description();
  // Reading the graph checks its types against the description's shapes. This must precede allocating memory for these shapes.
  std::unique_ptr<Graph> graph = opened_step_graph();
  adapters = description.adapters;
  const AllocationScope scope(AllocationScope::current(), MemoryClass::parameters);
  for (const auto& [name, shape] : description.parameters) trained.push_back(name), values.parameters.emplace(name, zeros(shape));
  for (const auto& [name, shape] : description.states) values.states.emplace(name, zeros(shape));
  values.make_optimizer_state(options, trained, ranks.get());
  return graph;
}

}  // namespace treadle::train
