// Makes a trainer's runners, and runs them. Runs are either steps or change no values.
#include <algorithm>

#include "exec/explain/profile_plan.h"
#include "session/model.h"
#include "session/refusals.h"
#include "train/trainer/trainer_impl.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

// A run's access to the values. It exists until the run has ended, even if the function that began the run has returned.
template <typename Access>
struct Using {
  explicit Using(exec::Variables& variables) : access(variables) {}
  const Access access;
  ExchangesOfRun exchanges;
};

// A step's exclusive access to the values: while this object exists, no run that reads them can start. Its destructor marks the values as
// changed.
struct Change {
  explicit Change(StepValues& of) : values(of), use(*of.variables()) {}
  ~Change() {
    use.exchanges.end();
    values.note_changed();
  }
  StepValues& values;
  Using<exec::Variables::Writing> use;
};

}  // namespace

Trainer::Impl::Impl(const Model& source, const TrainerOptions& given)
    : Runtime(in_training(given.session), "the trainer"), graphs(source, given) {
  begin(source);
}

Trainer::Impl::Impl(std::unique_ptr<const Artifacts> artifacts)
    : Runtime(in_training(artifacts->description().options.session), "the trainer"), graphs(std::move(artifacts)) {
  names_no_passes = "artifacts hold optimised graphs only";
  begin(graphs.model);
}

Trainer::Impl::~Impl() {
  in_flight->close(-1);  // waits for abandoned runs, which still use this object
  delist();
  leave_profile(runners.executables(), TraceFormat::chrome);
  values.leave_devices();
}

void Trainer::Impl::begin(const Model& source) {
  const Making scope(*this, source);
  making(name, [&] {
    if (graphs.options.early_updates && devices.any()) refuse("execution on devices", "early_updates");
    if (graphs.options.early_updates && parallel) refuse("parallel execution", "early_updates");
    devices.read_groups(graphs.model);
    make_step();
    if (graphs.options.accumulation_steps > 1) make_update();
  });
  if (graphs.ranks) {
    std::vector<const NamedTensors*> shared{&values.parameters, &values.states};
    if (!graphs.options.shard_optimizer) shared.push_back(&values.optimizer_state);
    graphs.ranks->begin(graphs.description(), shared);
  }
  enlist(source, [this] { runners.trim(); });
}

void Trainer::Impl::make_step() {
  std::vector<std::string> nodes, forward{"loss"};
  std::unique_ptr<Graph> graph = graphs.first_step_graph(options, nodes);
  for (const auto& [name, tensor] : values.states) forward.push_back(name);
  const NamedTensors kept = values.by_name(graphs.options, graphs.joins_parameters() ? graphs.trained : std::vector<std::string>());
  const Runner& step = runners.get(Runners::step, [&] {
    return std::make_unique<Runner>(
        *this, std::move(graph), [this] { return graphs.step_graph(options, /*simplified=*/false); },
        std::vector<const NamedTensors*>{&kept, &progress.scalars()}, nullptr,
        RunnerOptions{.forward = std::move(forward),
                      .is_ready = graphs.opened != nullptr,
                      .early_updates = graphs.options.early_updates,
                      .nodes = std::move(nodes),
                      .check_unread = [this](const std::string& name) { check_unread(name); }});
  });
  // Results stay on the device only if that is harmless. With a memory limit or in a job, others may need the device memory between steps.
  // All-reduce between ranks and accumulation of gradients happen on the host, so they need the results there.
  if (devices.any() && options.memory_limit_bytes == 0 && !job && !graphs.ranks && graphs.options.accumulation_steps == 1)
    values.let_stay(step);
}

void Trainer::Impl::make_update() {
  NamedTensors kept = values.by_name(graphs.options, {});
  std::erase_if(kept, [&](const auto& named) { return values.is_sum(named.first); });  // step_and_update() feeds gradient sums
  runners.get(Runners::update, [&] {
    return std::make_unique<Runner>(
        *this, graphs.update_graph(), [this] { return graphs.update_graph(); },
        std::vector<const NamedTensors*>{&kept, &progress.scalars()}, nullptr,
        RunnerOptions{.forward = std::vector<std::string>(), .is_ready = graphs.opened != nullptr});
  });
}

const Runner& Trainer::Impl::gradients() {
  return runners.get(Runners::gradients, [this] {
    const MakingFurther further(*this, "gradients");
    auto make = [this](bool simplified) { return graphs.gradient_graph(options, simplified); };
    return making("the graph for gradients", [&] {
      return std::make_unique<Runner>(
          *this, make(true), [make] { return make(false); },
          std::vector<const NamedTensors*>{&values.parameters, &values.states, &progress.scalars()}, nullptr,
          RunnerOptions{.check_unread = [this](const std::string& name) { check_unread(name); }});
    });
  });
}

const Runner& Trainer::Impl::inference(TrainerGraphs::Inference wanted) {
  const Runners::Purpose purpose = !wanted.loss ? Runners::predict : wanted.outputs ? Runners::evaluate : Runners::loss;
  return runners.get(purpose, [this, wanted] {
    const exec::Variables::Reading reading(*values.variables());  // prevents steps from writing parameters while weights are packed
    const MakingFurther further(*this, wanted.loss ? "evaluate" : "predict");
    values.bring_to_host();
    // Adapters are inputs of this graph, too. They are small, and the weights that they modify stay constant and packed.
    return making(wanted.loss ? "the graph for evaluate" : "the graph for predict", [&] {
      return std::make_unique<Runner>(
          *this, graphs.inference_graph(wanted), [this, wanted] { return graphs.inference_graph(wanted); },
          std::vector<const NamedTensors*>{&values.parameters}, values.variables(),
          RunnerOptions{.is_ready = graphs.opened != nullptr, .check_unread = [this](const std::string& name) { check_unread(name); }});
    });
  });
}

// Accepts a feed that only another graph of the trainer reads, so that predict() can take the batches of evaluate().
void Trainer::Impl::check_unread(const std::string& fed) const {
  std::vector<std::string> inputs = runners[Runners::step].fed_names();
  std::erase(inputs, kLabels);
  for (const ValueInfo& info : graphs.model.inputs()) inputs.push_back(info.name);
  for (const ValueInfo& info : loss_inputs(graphs.model, graphs.options).feeds) inputs.push_back(info.name);
  if (std::ranges::find(inputs, fed) != inputs.end()) return;
  std::ranges::sort(inputs);
  inputs.erase(std::ranges::unique(inputs).begin(), inputs.end());
  refuse_feed(graphs.model, fed, inputs);
}

double Trainer::Impl::train_step(const Feeds& feeds, const Datum& labels, const RunOptions* run_options) {
  values.check_averages_unused("a step"), values.check_whole();
  const bool updates = progress.updates_next();
  const auto change = std::make_shared<Change>(values);
  ExchangesOfRun& exchanges = change->use.exchanges;
  if (graphs.ranks) exchanges.add(graphs.ranks->step());
  if (graphs.ranks && updates && runners.has(Runners::update)) exchanges.add(graphs.ranks->update());
  const Call call{run_options, change};
  progress.begin_step();
  std::vector<Datum> outputs;
  LossScaler* const scaler = graphs.scaler.get();
  if (scaler) scaler->begin_step();
  try {
    exchanges.report_failure([&] {
      const Runner& step = runners[Runners::step];
      outputs = updates && runners.has(Runners::update)
                    ? step_and_update(feeds, labels, call)
                    : values.write(
                          step, [&] { return step.arrange(feeds, labels); },
                          [&](std::vector<Datum> arranged, std::span<const Datum> bound, std::span<const exec::OutputMemory> memory) {
                            return run(step, std::move(arranged), call, bound, memory);
                          });
      if (graphs.ranks && updates) graphs.ranks->share(values.parameters);
    });
  } catch (const Error&) {
    const std::optional<double> loss = scaler ? scaler->skipped() : std::nullopt;
    if (!loss) throw;
    return *loss;
  }
  if (scaler) scaler->succeeded(updates);
  progress.end_step();
  return static_cast<double>(*outputs[0].tensor().data<float>());
}

// Writes running statistics and clears gradient sums only at the end, so that a failed step can be repeated.
std::vector<Datum> Trainer::Impl::step_and_update(const Feeds& feeds, const Datum& labels, const Call& call) {
  const Runner &step = runners[Runners::step], &update = runners[Runners::update];
  std::vector<Datum> outputs = run(step, step.arrange(feeds, labels), call);
  const std::vector<std::string>& names = step.graph().output_names;
  Feeds sums;
  for (size_t k = 0; k < outputs.size(); ++k)
    if (values.is_sum(names[k])) sums.emplace(names[k], outputs[k]);
  run(update, update.arrange(sums, {}), call, update.written());
  values.end_accumulation(names, outputs);
  return outputs;
}

std::vector<Datum> Trainer::Impl::read(const Runner& runner, const Feeds& feeds, const Datum& labels, const RunOptions* run_options,
                                       Exchange* exchange) {
  const auto reading = std::make_shared<Using<exec::Variables::Reading>>(*values.variables());
  if (exchange) reading->exchanges.add(*exchange);
  values.bring_to_host();
  values.look();
  std::vector<Datum> outputs;
  reading->exchanges.report_failure([&] { outputs = run(runner, runner.arrange(feeds, labels), {run_options, reading}); });
  return outputs;
}

std::vector<Datum> Trainer::Impl::run(const Runner& runner, std::vector<Datum> arranged, const Call& call, std::span<const Datum> bound,
                                      std::span<const exec::OutputMemory> memory) {
  check_run_options(call.options);
  std::shared_ptr<const Monitor> monitor = current_monitor();
  const std::shared_ptr<const Executable> executable = runner.executable(monitor);
  // A monitored value may exist only in another graph of the trainer. So a graph that has none of the values runs unmonitored, unless it is
  // a step that includes the update and must have all values.
  const bool is_whole_step = &runner == &runners[Runners::step] && !runners.has(Runners::update);
  if (monitor && !is_whole_step && !executable->watches_any()) monitor.reset();
  // Seed of random operators. It differs between ranks, because their samples differ.
  uint64_t seed = progress.position().num_steps;
  if (const DataParallel* ranks = graphs.ranks.get())
    seed = seed * static_cast<uint64_t>(ranks->size()) + static_cast<uint64_t>(ranks->rank());
  std::vector<Datum> outputs(executable->output_names.size());
  execute(executable, arranged, outputs,
          {.bound = bound,
           .memory = memory,
           .options = call.options,
           .monitor = std::move(monitor),
           .random_id = seed,
           .committed = runner.updates_early() ? &values.half_updated() : nullptr,
           .held = call.held});
  outputs.resize(executable->num_fetched);
  return outputs;
}

NamedTensors Trainer::Impl::merged_parameters() const {
  values.bring_to_host();
  if (graphs.adapters.empty()) return values.parameters;
  return merge_adapters(graphs.model, graphs.adapters, factor_of(graphs.options.lora), values.parameters);
}

CacheStatistics Trainer::Impl::cache_statistics() const {
  CacheStatistics statistics;
  add_bindings(runners.executables(), statistics);
  return statistics;
}

profile::ProfilePlan Trainer::Impl::profile_plan(const Profiling& of) const {
  profile::ProfilePlan plan = Runtime::profile_plan(runners.executables(), of);
  if (of.window().limits().memory) values.add_held(plan.held);
  if (of.names_passes())
    name_passes(plan.profile, [&] {
      std::unique_ptr<Graph> graph = graphs.step_graph(options, /*simplified=*/true);
      optimize(*graph, options, &devices);
      return std::shared_ptr<const Graph>(std::move(graph));
    });
  return plan;
}

}  // namespace treadle::train
