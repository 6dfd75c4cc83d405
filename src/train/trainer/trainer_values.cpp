// The values that a trainer keeps and changes, for graphs from a model and from artifacts.
#include <fmt/format.h>

#include <utility>

#include "core/allocation.h"
#include "train/graph/joined_parameters.h"
#include "train/graph/optimizers.h"
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
  // Checks that the types agree with the description's shapes, before memory is allocated for these.
  std::unique_ptr<Graph> graph = opened_step_graph();
  adapters = description.adapters;
  const AllocationScope scope(AllocationScope::current(), MemoryClass::parameters);
  for (const auto& [name, shape] : description.parameters) trained.push_back(name), parameters.emplace(name, zeros(shape));
  for (const auto& [name, shape] : description.states) states.emplace(name, zeros(shape));
  make_optimizer_state();
  return graph;
}

void TrainerGraphs::make_optimizer_state() {
  const AllocationContext* memory = AllocationScope::current();
  if (options.accumulation_steps > 1) {
    const AllocationScope scope(memory, MemoryClass::gradients);
    for (const std::string& name : trained) optimizer_state.emplace(state_name(name, kGradient), zeros(parameters.at(name).shape()));
  }
  const AllocationScope scope(memory, MemoryClass::optimizer_state);
  for (const auto& [name, tensor] : parameters)
    for (const std::string& what : state_names(options))
      if (!ranks || ranks->updates(name))
        optimizer_state.emplace(state_name(name, what), what == kAverage ? tensor.clone() : zeros(tensor.shape()));
  if (options.ema_statistics)
    for (const auto& [name, tensor] : states) optimizer_state.emplace(state_name(name, kAverage), tensor.clone());
}

bool TrainerGraphs::is_sum(const std::string& state) const {
  return options.accumulation_steps > 1 && state.ends_with(fmt::format("/{}", kGradient));
}

void TrainerGraphs::add_held(std::vector<MemoryHolding>& held) const {
  for (const NamedTensors* tensors : {&parameters, &states})
    for (const auto& [name, tensor] : *tensors) held.push_back({name, MemoryClass::parameters, tensor.size_bytes()});
  for (const auto& [name, tensor] : optimizer_state)
    held.push_back({name, is_sum(name) ? MemoryClass::gradients : MemoryClass::optimizer_state, tensor.size_bytes()});
}

}  // namespace treadle::train
