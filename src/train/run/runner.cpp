#include "train/run/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/pattern.h"
#include "core/values/allocation.h"
#include "exec/run/frame.h"
#include "passes/precision.h"
#include "session/model.h"
#include "session/options.h"
#include "session/refusals.h"
#include "session/run_names.h"
#include "treadle/error.h"

namespace treadle::train {

Runner::Runner(const Runtime& runtime, std::unique_ptr<Graph> graph, MakeUnsimplified make_unsimplified,
               const std::vector<const NamedTensors*>& kept, std::shared_ptr<exec::Variables> variables, RunnerOptions options)
    : runtime_(runtime),
      make_unsimplified_(std::move(make_unsimplified)),
      variables_(std::move(variables)),
      options_(std::move(options)),
      executable_(lower(std::move(graph), /*observable=*/false)) {
  auto kept_as = [&](const std::string& name) {
    Datum datum;
    for (const NamedTensors* tensors : kept)
      if (auto found = tensors->find(name); found != tensors->end()) datum = found->second;
    return datum;
  };
  for (const std::string& name : executable_->input_names) {
    kept_.push_back(kept_as(name));
    if (!kept_.back().defined()) fed_names_.push_back(name);
  }
  for (const std::string& name : executable_->output_names) written_.push_back(kept_as(name));
}

std::shared_ptr<Executable> Runner::lower(std::unique_ptr<Graph> graph, bool observable) const {
  if (!options_.is_ready) {
    const LoadPhases::Phase phase("optimise");
    optimize(*graph, runtime_.options, &runtime_.devices, observable ? std::vector<std::string>() : options_.nodes);
  }
  exec::ProgramOptions options = runtime_.program_options();
  options.observable = observable;
  options.variables = variables_;
  options.forward_outputs = options_.forward;
  options.early_updates = options_.early_updates;
  // These options concern forward values that are kept for the backward pass; other graphs keep none.
  if (!options_.forward) options.arena_share = 1, options.recompute_fraction = 0;
  return runtime_.make_executable(std::move(graph), options);
}

std::shared_ptr<const Executable> Runner::executable(const std::shared_ptr<const Monitor>& monitor) const {
  if (!monitor) return executable_;
  std::lock_guard lock(mutex_);
  if (monitor_ == monitor) return watched_;
  const Runtime::MakingFurther scope(runtime_, "a monitor");
  std::unique_ptr<Graph> graph = make_unsimplified_();
  const size_t num_fetched = graph->outputs.size();
  std::vector<std::string> names;  // the output values' own names; graph->output_names may differ
  for (ValueId output : graph->outputs) names.push_back(graph->value(output).name);
  for (NodeId id : graph->order())
    for (ValueId output : graph->node(id).outputs) {
      if (output == kNoValue || graph->is_output(output) || !matches(monitor->pattern, graph->value(output).name)) continue;
      names.push_back(graph->value(output).name);
      graph->outputs.push_back(output);
      graph->output_names.push_back(names.back());
    }
  const std::shared_ptr<Executable> made =
      runtime_.making("the graph for a monitor", [&] { return lower(std::move(graph), /*observable=*/true); });
  made->num_fetched = num_fetched;
  made->watched.resize(made->program->slots().size());
  auto watch = [&](exec::SlotId slot, const std::string& name) {
    if (matches(monitor->pattern, name)) made->watched[slot].push_back(name);
  };
  for (size_t k = 0; k < names.size(); ++k) watch(made->program->output_slots()[k], names[k]);
  for (exec::SlotId slot : made->program->input_slots()) watch(slot, made->program->name(slot));
  for (exec::SlotId s : made->program->slots().ids())
    if (const Value& value = made->graph->value(made->program->slots()[s].value); value.kind == Value::Kind::parameter)
      watch(s, value.name);
  monitor_ = monitor;
  watched_ = made;
  return watched_;
}

void Runner::add_to(Runtime::Executables& all) const {
  all.push_back(executable_);
  std::lock_guard lock(mutex_);
  if (watched_) all.push_back(watched_);
}

Runtime::Executables Runner::executables() const {
  Runtime::Executables all;
  add_to(all);
  return all;
}

void Runner::trim() const {
  for (const auto& executable : executables()) executable->executor->frames().trim();
}

std::vector<Datum> Runner::arrange(const Feeds& feeds, const Datum& labels) const {
  const std::vector<std::string>& names = executable_->input_names;
  if (options_.check_unread)
    for (const auto& [name, value] : feeds)
      if (name == kLabels || position_of(fed_names_, name) == fed_names_.size()) options_.check_unread(name);
  std::vector<Datum> arranged = kept_;
  for (size_t i = 0; i < names.size(); ++i) {
    if (arranged[i].defined()) continue;
    if (names[i] == kLabels) {
      if (!labels.defined() || !labels.tensor().defined())
        throw Error(ErrorCode::invalid_argument, "the loss has labels, and none are given");
      arranged[i] = labels;
    } else if (auto found = feeds.find(names[i]); found != feeds.end()) {
      arranged[i] = found->second;
    } else {
      throw Error(ErrorCode::invalid_argument, fmt::format("the input \"{}\" is missing", names[i]));
    }
  }
  return arranged;
}

std::vector<Datum> Runner::arrange_in_order(std::vector<Datum> fed) const {
  if (fed.size() != fed_names_.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} values are fed; there are {} inputs", fed.size(), fed_names_.size()));
  if (fed.size() == kept_.size()) return fed;
  std::vector<Datum> arranged = kept_;
  size_t next = 0;
  for (Datum& datum : arranged)
    if (!datum.defined()) datum = std::move(fed[next++]);
  return arranged;
}

void Runner::keep(const std::string& name, const Datum& value) {
  if (const size_t input = position_of(executable_->input_names, name); input < kept_.size()) kept_[input] = value;
}

size_t Runner::place_of_fed(size_t fed) const { return position_of(executable_->input_names, fed_names_[fed]); }

SessionOptions in_training(const SessionOptions& options) {
  refuse_set("training", complete(options));
  const auto precision = passes::PrecisionRules::parse(options.precision);
  if (precision.names(ops::Precision::int8_weights)) refuse("training", "precision of int8_weights");
  if (!precision.empty() && options.graph_optimization_level < GraphOptimizationLevel::extended)
    refuse("training", "precision without optimisations");
  SessionOptions session = options;
  session.mode = SessionMode::training;
  return session;
}

void check_run_options(const RunOptions* options) {
  if (!options) return;
  if (!options->adapters.empty()) refuse("training", "adapters");
  if (!options->targets.empty()) refuse("training", "targets");
  if (!options->output_allocators.empty()) refuse("training", "output_allocators");
  if (!options->output_devices.empty()) refuse("training", "output_devices");
}

void refuse_feed(const Model& model, const std::string& name, std::span<const std::string> inputs) {
  const onnx::GraphDef& graph = model.impl().def.graph;
  auto makes_it = [&](const onnx::NodeDef& node) { return std::ranges::find(node.outputs, name) != node.outputs.end(); };
  if (std::ranges::any_of(graph.nodes, makes_it) || find_initializer(model, name)) refuse("training", "feeds of inner values", name);
  throw_no_input(name, inputs);
}

}  // namespace treadle::train
