#include "train/trainer/trainer_graphs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

#include "core/values/allocation.h"
#include "session/refusals.h"
#include "train/graph/head.h"
#include "train/graph/initialization.h"
#include "train/graph/joined_parameters.h"
#include "train/graph/losses.h"
#include "train/graph/optimizers.h"
#include "train/graph/untied.h"
#include "train/options/options.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

/// Returns the options. If they contain a communicator_name, opens the communicator of this name and adds it.
TrainerOptions with_communicator(TrainerOptions options) {
  if (options.communicator_name.empty()) return options;
  if (options.communicator) throw Error(ErrorCode::invalid_argument, "communicator and communicator_name are both given");
  options.communicator = connect_communicator(options.communicator_name, options.communicator_deadline_s);
  return options;
}

// Checks the ranges of options. Returns the options, for use in initializers that change the model as the options say.
const TrainerOptions& in_range(const TrainerOptions& options) {
  trainer_option_table().check(options);
  return options;
}

}  // namespace

TrainerGraphs::TrainerGraphs(const Model& source, const TrainerOptions& given)
    : model(prepared(source, in_range(given))), options(with_communicator(given)) {
  for (const ValueInfo& info : model.outputs()) output_names.push_back(info.name);
  check_options(options);
  if (scales_loss(options)) scaler = std::make_unique<LossScaler>(options);
  if (options.communicator) ranks = std::make_unique<DataParallel>(options.communicator, options);
}

Selection TrainerGraphs::selection(bool training) const {
  if (trained.empty())
    return {.parameters = options.parameters, .frozen = options.frozen, .session = &options.session, .lora = options.lora};
  Selection again{.parameters = trained, .as_parameters = !training, .session = &options.session, .lora = options.lora};
  again.lora.targets.clear();
  for (const Adapter& adapter : adapters) {
    again.lora.targets.push_back(adapter.weight);
    std::erase(again.parameters, adapter.a), std::erase(again.parameters, adapter.b);
  }
  return again;
}

TrainingGraph TrainerGraphs::with_loss(bool training, ValueId& loss, ValueId* weight) const {
  TrainingGraph made = make_training_graph(model, selection(training), training);
  loss = add_loss(*made.graph, find_output(*made.graph, options.output), options, weight);
  return made;
}

void TrainerGraphs::add_updates(Graph& graph, const std::vector<std::string>& names, std::vector<ParameterGradient> grads,
                                Outputs& outputs) const {
  const auto [rate, count] = add_scalars(graph);
  grads = add_clipping(graph, options, std::move(grads));
  for (size_t i = 0; i < names.size(); ++i) {
    if (ranks && !ranks->updates(names[i])) continue;
    const std::vector<ValueId> made = add_update(graph, options, names[i], grads[i], rate, count);
    outputs.emplace_back(names[i], made[0]);
    const std::vector<std::string> state = state_names(options);
    for (size_t k = 0; k < state.size(); ++k) outputs.emplace_back(state_name(names[i], state[k]), made[k + 1]);
  }
}

Differentiated TrainerGraphs::differentiate(const SessionOptions& session, bool simplified) const {
  Differentiated made;
  DataParallel::StepValues& values = made.values;
  made.training = with_loss(true, values.loss, ranks ? &values.weight : nullptr);
  made.transposed = transposed_weights(made.graph(), made.training.parameters);
  std::vector<ValueId> kept{values.loss};
  if (ranks) kept.push_back(values.weight);
  if (simplified) simplify_forward(made.training, kept, session);
  values.loss = kept[0];
  if (ranks) values.weight = kept[1];
  const ValueId head = scaler ? scaler->head(made.graph(), values.loss) : kNoValue;
  values.gradients = add_backward(made.training, model, std::span(kept).first(1), {&head, 1});
  for (TrainingGraph::State& state : made.training.states) values.states.push_back(&state.updated);
  return made;
}

Outputs TrainerGraphs::add_step_outputs(Differentiated& made) const {
  Graph& graph = made.graph();
  const bool accumulates = options.accumulation_steps > 1;
  if (ranks) accumulates ? ranks->add_to_accumulation(graph, made.values) : ranks->add_to_step(graph, made.values);
  Outputs outputs{{"loss", made.values.loss}};
  for (const TrainingGraph::State& state : made.training.states) {
    const ValueId assigned = updated(graph, state.name, "Assign", state.updated, {});
    outputs.emplace_back(state.name, assigned);
    if (!options.ema_statistics) continue;
    const std::string average = state_name(state.name, kAverage);
    outputs.emplace_back(average,
                         updated(graph, average, "AverageParameter", assigned, {{"decay", static_cast<float>(options.ema_decay)}}));
  }
  std::vector<std::string> names = trained;
  std::vector<ParameterGradient> gradients;
  if (joins_parameters()) {
    names = {std::string(kAllParameters)};
    gradients = {{join_parameters(graph, trained, made.values.gradients, names[0])}};
  } else {
    gradients = with_rows(made.training, made.values.gradients, options.lazy_updates, "lazy_updates");
  }
  if (scaler) scaler->unscale(graph, made.values.loss, gradients, /*reports=*/true);
  if (!accumulates) {
    add_updates(graph, names, std::move(gradients), outputs);
    return outputs;
  }
  const auto part = static_cast<float>(1.0 / options.accumulation_steps);
  for (size_t i = 0; i < trained.size(); ++i) {
    const std::string sum = state_name(trained[i], kGradient);
    outputs.emplace_back(sum, updated(graph, sum, "AccumulateGradient", gradients[i].value, {{"factor", part}}));
  }
  return outputs;
}

std::unique_ptr<Graph> TrainerGraphs::first_step_graph(const SessionOptions& session, std::vector<std::string>& nodes) {
  if (opened) return first_opened_step_graph();
  Differentiated made = differentiate(session, /*simplified=*/true);
  trained = made.training.parameters, adapters = made.training.adapters;
  check_groups(options, trained), check_head(model, options, trained);
  warn_of_merged(model, trained, session);
  make_values(made);
  set_outputs(made.graph(), add_step_outputs(made), made.training.read);
  nodes = std::move(made.training.nodes);
  return std::move(made.training.graph);
}

std::unique_ptr<Graph> TrainerGraphs::step_graph(const SessionOptions& session, bool simplified) const {
  if (opened) return opened_step_graph();
  Differentiated made = differentiate(session, simplified);
  if (simplified)
    set_outputs(made.graph(), add_step_outputs(made), made.training.read);
  else
    set_outputs(made.graph(), add_step_outputs(made));
  return std::move(made.training.graph);
}

std::unique_ptr<Graph> TrainerGraphs::update_graph() const {
  if (opened) return opened->update();
  auto graph = std::make_unique<Graph>(std::make_shared<SymbolTable>());
  std::vector<ValueId> grads;
  for (const std::string& name : trained) {
    const Shape& shape = values.parameters.at(name).shape();
    const Type type = Type::tensor(DType::float32, SymbolicShape(shape.dims().begin(), shape.dims().end()));
    graph->add_input(name, type);
    grads.push_back(graph->add_input(state_name(name, kGradient), type));
  }
  Outputs outputs;
  if (ranks) grads = ranks->add_to_update(*graph, grads);
  std::vector<ParameterGradient> whole;
  for (const ValueId gradient : grads) whole.push_back({gradient});
  add_updates(*graph, trained, std::move(whole), outputs);
  set_outputs(*graph, outputs);
  return graph;
}

std::unique_ptr<Graph> TrainerGraphs::gradient_graph(const SessionOptions& session, bool simplified) const {
  if (opened) refuse("training from artifacts", "gradients");
  Differentiated made = differentiate(session, simplified);
  if (ranks) ranks->add_to_gradients(made.graph(), made.values);
  std::vector<ParameterGradient> gradients;
  for (const ValueId gradient : made.values.gradients) gradients.push_back({gradient});
  if (scaler) scaler->unscale(made.graph(), made.values.loss, gradients, /*reports=*/false);
  Outputs outputs;
  for (size_t i = 0; i < gradients.size(); ++i) outputs.emplace_back(made.training.parameters[i], gradients[i].value);
  set_outputs(made.graph(), outputs, made.training.read);
  return std::move(made.training.graph);
}

std::unique_ptr<Graph> TrainerGraphs::inference_graph(Inference wanted) const {
  if (opened) return opened->evaluation(wanted.loss, wanted.outputs, values);
  TrainingGraph made;
  Outputs outputs;
  if (wanted.loss) {
    ValueId loss;
    made = with_loss(false, loss);
    outputs.emplace_back("loss", loss);
  } else {
    made = make_training_graph(model, selection(false), false);
  }
  if (wanted.outputs)
    for (size_t i = 0; i < output_names.size(); ++i) outputs.emplace_back(output_names[i], made.graph->outputs[i]);
  set_outputs(*made.graph, outputs);
  return std::move(made.graph);
}

std::string TrainerGraphs::description() const {
  std::string text;
  for (const onnx::NodeDef& node : model.impl().def.graph.nodes)
    text += fmt::format("{} {} {} {}\n", node.domain, node.op_type, fmt::join(node.inputs, " "), fmt::join(node.outputs, " "));
  for (const std::string& name : trained) text += fmt::format("{} {}\n", name, to_string(values.parameters.at(name).shape()));
  for (const auto& [name, value] : settings_of(options)) text += fmt::format("{}={}\n", name, value);
  return text + fmt::format("learning_rate={} bucket_bytes={} reduction={} shard_optimizer={}", options.learning_rate, options.bucket_bytes,
                            name_of(options.reduction), options.shard_optimizer);
}

void TrainerGraphs::make_values(const Differentiated& made) {
  const AllocationContext* memory = AllocationScope::current();
  {
    const AllocationScope scope(memory, MemoryClass::parameters);
    values.parameters = initial_adapters(adapters, options.lora.seed);
    for (const std::string& name : trained)
      if (!values.parameters.contains(name)) values.parameters.merge(copy_initializers(model, {name}));
    initialize(values.parameters, options, made.transposed);
    std::vector<std::string> statistics;
    for (const TrainingGraph::State& state : made.training.states) statistics.push_back(state.name);
    values.states = copy_initializers(model, statistics);
  }
  if (ranks) ranks->assign_owners(trained, values.parameters);
  values.make_optimizer_state(options, trained, ranks.get());
}

}  // namespace treadle::train
