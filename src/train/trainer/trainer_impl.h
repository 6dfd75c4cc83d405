// The implementation of Trainer: its graphs, the values that steps update, and the sequence of a step.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/allocation.h"
#include "exec/explain/profile_plan.h"
#include "exec/run/frame.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "session/refusals.h"
#include "train/graph/data_parallel.h"
#include "train/graph/joined_parameters.h"
#include "train/graph/optimizers.h"
#include "train/graph/training_graph.h"
#include "train/options/options.h"
#include "train/run/runner.h"
#include "train/run/staying_values.h"
#include "train/trainer/trainer_graphs.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"
#include "treadle/train.h"

namespace treadle::train {

struct Trainer::Impl : Runtime, TrainerGraphs {
  using TrainerGraphs::options;

  Impl(const Model& source, const TrainerOptions& given)
      : Runtime(in_training(given.session), "the trainer"), TrainerGraphs(source, given) {
    begin(source);
  }
  explicit Impl(std::unique_ptr<const Artifacts> artifacts)
      : Runtime(in_training(artifacts->description().options.session), "the trainer"), TrainerGraphs(std::move(artifacts)) {
    names_no_passes = "artifacts hold optimised graphs only";
    begin(model);
  }

  void begin(const Model& source) {
    const Making scope(*this, source);
    making(name, [&] {
      scalars.emplace(kLearningRate, Tensor::scalar(static_cast<float>(options.learning_rate)));
      scalars.emplace(kUpdateCount, Tensor::scalar<int64_t>(1));
      if (scaler) scalars.emplace(kLossScale, scaler->scalar());
      if (options.early_updates && devices.any()) refuse("execution on devices", "early_updates");
      if (options.early_updates && parallel) refuse("parallel execution", "early_updates");
      devices.read_groups(model);
      make_step();
      if (options.accumulation_steps > 1) make_update();
    });
    if (ranks) begin_together();
    keep_limits([this] { trim(); });
  }

  ~Impl() {
    in_flight->close(-1);  // waits for abandoned runs, which still use the members
    let_limits_go();
    leave_profile(executables(), TraceFormat::chrome);
    staying.reset();
    for (std::unique_ptr<Runner>* runner : {&step, &update, &gradients, &inference, &loss, &evaluation}) runner->reset();
    for (NamedTensors* tensors : {&parameters, &states, &momentum, &optimizer_state}) tensors->clear();
    step_bound.clear(), update_bound.clear();
  }

  /// Visits each runner made so far, the step's first.
  template <typename Visit>
  void for_each_runner(Visit&& visit) const {
    std::lock_guard lock(runners_mutex);
    for (const std::unique_ptr<Runner>* runner : {&step, &update, &gradients, &inference, &loss, &evaluation})
      if (*runner) visit(**runner);
  }
  // Frees the arenas that no run uses.
  void trim() const {
    for_each_runner([](const Runner& runner) { runner.trim(); });
  }

  profile::ProfilePlan profile_plan(const Profiling& of) const override;
  Executables executables() const {
    Executables made;
    for_each_runner([&](const Runner& runner) { runner.add_to(made); });
    return made;
  }

  /// The memory of each output: the kept tensor of the same name; undefined if there is none.
  static std::vector<Datum> bound_to(const NamedTensors& kept, const std::vector<std::string>& outputs) {
    std::vector<Datum> bound(outputs.size());
    for (size_t k = 0; k < outputs.size(); ++k)
      if (auto found = kept.find(outputs[k]); found != kept.end()) bound[k] = found->second;
    return bound;
  }

  void make_step() {
    std::vector<std::string> nodes;
    std::unique_ptr<Graph> graph = first_step_graph(Runtime::options, nodes);
    std::vector<std::string> forward{"loss"};
    for (const auto& [name, tensor] : states) forward.push_back(name);
    NamedTensors kept = joins_parameters()
                            ? lay_side_by_side(parameters, optimizer_state, trained, state_names(options), std::string(kAllParameters))
                            : parameters;  // by the names of the graph's inputs and outputs
    kept.insert(optimizer_state.begin(), optimizer_state.end());
    kept.insert(states.begin(), states.end());
    step_bound = bound_to(kept, graph->output_names);
    auto again = [this] { return step_graph(Runtime::options, /*simplified=*/false); };
    step = std::make_unique<Runner>(*this, std::move(graph), again, std::vector<const NamedTensors*>{&kept, &scalars}, nullptr,
                                    RunnerOptions{.forward = std::move(forward),
                                                  .is_ready = opened != nullptr,
                                                  .early_updates = options.early_updates,
                                                  .nodes = std::move(nodes),
                                                  .check_unread = checking_unread()});
    // Results stay on the device only if nothing else needs them on the host: with a memory limit or in a job, they do not occupy device
    // memory between steps, and the exchange between ranks and the sums of gradients are computed on the host.
    if (devices.any() && Runtime::options.memory_limit_bytes == 0 && !job && !ranks && options.accumulation_steps == 1)
      staying = std::make_unique<StayingValues>(*step->executable(), step_bound);
    for (const auto& [name, tensor] : parameters)
      if (auto found = optimizer_state.find(state_name(name, "momentum")); found != optimizer_state.end())
        momentum.emplace(name, found->second);
  }

  /// Called for a feed that is not an input of the graph being run.
  /// @throws Error(invalid_argument) unless another graph of the trainer has such an input
  void check_unread(const std::string& name) const;
  std::function<void(const std::string&)> checking_unread() {
    return [this](const std::string& name) { check_unread(name); };
  }

  void make_update() {
    NamedTensors kept = parameters;
    for (const auto& [name, tensor] : optimizer_state)
      if (!is_sum(name)) kept.emplace(name, tensor);
    std::unique_ptr<Graph> graph = update_graph();
    update_bound = bound_to(kept, graph->output_names);
    auto again = [this] { return update_graph(); };
    update = std::make_unique<Runner>(*this, std::move(graph), again, std::vector<const NamedTensors*>{&kept, &scalars}, nullptr,
                                      RunnerOptions{.forward = std::vector<std::string>(), .is_ready = opened != nullptr});
  }

  /// The last step of an accumulation, followed by the update. Statistics are written and sums cleared at the end, so that a failed step
  /// can be repeated.
  std::vector<Datum> step_and_update(const Feeds& feeds, const Datum& labels, const Call& call) {
    std::vector<Datum> outputs = run(*step, step->arrange(feeds, labels), call);
    const std::vector<std::string>& names = step->graph().output_names;
    Feeds sums;
    for (size_t k = 0; k < outputs.size(); ++k)
      if (is_sum(names[k])) sums.emplace(names[k], outputs[k]);
    run(*update, update->arrange(sums, {}), call, update_bound);
    for (size_t k = 0; k < outputs.size(); ++k)
      if (auto state = states.find(names[k]); state != states.end()) state->second.copy_from(outputs[k].tensor());
    for (const auto& [name, gradient] : sums) {
      Tensor& sum = optimizer_state.at(name);
      std::fill_n(sum.data<float>(), sum.num_elements(), 0.0F);
    }
    return outputs;
  }

  /// A step without a separate update graph, or one that only accumulates.
  std::vector<Datum> whole_step(const Feeds& feeds, const Datum& labels, const Call& call) {
    std::vector<Datum> arranged = step->arrange(feeds, labels);
    if (staying && (may_have_been_written() || is_state_shown)) staying->leave();
    if (!staying || may_be_written() || is_state_shown) return run(*step, std::move(arranged), call, step_bound);
    try {
      const std::vector<exec::OutputMemory> memory = staying->begin(arranged);
      std::vector<Datum> outputs = run(*step, std::move(arranged), call, {}, memory);
      staying->take(outputs);
      return outputs;
    } catch (const OutOfMemory&) {  // handled below, where the exception no longer holds memory
    }
    staying->leave();  // the device has no memory for values that stay
    staying.reset();
    return run(*step, step->arrange(feeds, labels), call, step_bound);
  }

  /// Must be called before anyone reads the values that steps update.
  void bring_to_host() const {
    check_whole();
    if (staying) staying->bring_to_host();
  }
  const NamedTensors& shown_state(const NamedTensors& tensors) {
    bring_to_host();
    is_state_shown = true;
    return tensors;
  }

  NamedTensors merged() const {
    bring_to_host();
    return adapters.empty() ? parameters : merge_adapters(model, adapters, factor_of(options.lora), parameters);
  }

  /// The averages of parameters and running statistics, by name.
  /// @param in_place  return the tensors that have the averages' elements after use_averages(true)
  NamedTensors averages(bool in_place = false) const {
    bring_to_host();
    NamedTensors named;
    for (const NamedTensors* values : {&parameters, &states})
      for (const auto& [name, tensor] : *values)
        if (auto found = optimizer_state.find(state_name(name, kAverage)); found != optimizer_state.end())
          named.emplace(name, in_place ? tensor : found->second);
    return named;
  }

  /// Swaps the elements of parameters and averages. They are swapped in place, because callers hold views of the parameters and programs
  /// are bound to their memory.
  void use_averages(bool use) {
    if (options.ema_decay <= 0) throw Error(ErrorCode::invalid_argument, "the trainer keeps no averages: it was made without ema_decay");
    if (use == averages_used) return;
    const exec::Variables::Writing writing(*variables());
    if (staying) staying->leave();
    for (auto& [name, average] : averages()) {
      Tensor& value = states.contains(name) ? states.at(name) : parameters.at(name);
      std::swap_ranges(value.data<float>(), value.data<float>() + value.num_elements(), average.data<float>());
    }
    note_changed();
    averages_used = use;
  }
  void check_whole() const {
    if (half_updated)
      throw Error(ErrorCode::invalid_argument,
                  "a step has failed behind its first update (early_updates), and left parameters half updated: load a checkpoint");
  }
  void check_averages_unused(std::string_view what) const {
    if (averages_used)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} while the averages are in the parameters' place; use_averages(false) first", what));
  }

  double train_step(const Feeds& feeds, const Datum& labels, const RunOptions* run_options) {
    check_averages_unused("a step"), check_whole();
    const bool updates = accumulated_steps + 1 == options.accumulation_steps;
    const auto change = std::make_shared<Change>(*this, updates);
    const Call call{run_options, change};
    *scalars.at(std::string(kLearningRate)).data<float>() = static_cast<float>(scheduled_rate());
    *scalars.at(std::string(kUpdateCount)).data<int64_t>() = num_updates + 1;
    std::vector<Datum> outputs;
    if (scaler) scaler->begin_step();
    try {
      change->report_failure([&] {
        outputs = updates && update ? step_and_update(feeds, labels, call) : whole_step(feeds, labels, call);
        if (ranks && updates) ranks->share(parameters);
      });
    } catch (const Error&) {
      const std::optional<double> loss = scaler ? scaler->skipped() : std::nullopt;
      if (!loss) throw;
      return *loss;
    }
    half_updated = false;
    if (scaler) scaler->succeeded(updates);
    ++num_steps;
    num_updates += updates;
    accumulated_steps = updates ? 0 : accumulated_steps + 1;
    return static_cast<double>(*outputs[0].tensor().data<float>());
  }

  /// Seed of a step's random operators. It differs between ranks, because their samples differ.
  uint64_t random_id() const {
    return ranks ? num_steps * static_cast<uint64_t>(ranks->size()) + static_cast<uint64_t>(ranks->rank()) : num_steps;
  }

  void begin_together() {
    std::vector<const NamedTensors*> shared{&parameters, &states};
    if (!options.shard_optimizer) shared.push_back(&optimizer_state);
    ranks->begin(description(), shared);
  }

  double scheduled_rate() const { return options.learning_rate * options.schedule.factor(num_updates); }

  Runner& make_gradients() {
    std::lock_guard alone(making_mutex);
    if (!gradients) {
      const MakingFurther further(*this, "gradients");
      auto make = [this](bool simplified) { return gradient_graph(Runtime::options, simplified); };
      auto runner = Runtime::making("the graph for gradients", [&] {
        return std::make_unique<Runner>(
            *this, make(true), [make] { return make(false); }, std::vector<const NamedTensors*>{&parameters, &states, &scalars}, nullptr,
            RunnerOptions{.check_unread = checking_unread()});
      });
      std::lock_guard lock(runners_mutex);
      gradients = std::move(runner);
    }
    return *gradients;
  }

  /// Exists while a step runs, even if its caller has returned: no run that reads the parameters can start. Afterwards runs know that the
  /// parameters have changed.
  struct Change {
    Change(Impl& of, bool updates) : impl(of), writing(*of.variables()) {
      if (!of.ranks) return;
      exchanges.add(of.ranks->step());
      if (updates && of.update) exchanges.add(of.ranks->update());
    }
    ~Change() {
      exchanges.end();
      impl.note_changed();
    }
    template <typename Work>
    void report_failure(Work&& work) {
      exchanges.report_failure(work);
    }
    Impl& impl;
    const exec::Variables::Writing writing;
    ExchangesOfRun exchanges;
  };

  Runner& make_inference(std::unique_ptr<Runner>& runner, Inference wanted) {
    std::lock_guard alone(making_mutex);
    if (!runner) {
      const exec::Variables::Reading reading(*variables());  // keeps steps from writing parameters while weights are packed
      const MakingFurther further(*this, wanted.loss ? "evaluate" : "predict");
      bring_to_host();
      // Adapters are inputs here too. They are small, while the weights they belong to stay packed.
      auto made = Runtime::making(wanted.loss ? "the graph for evaluate" : "the graph for predict", [&] {
        return std::make_unique<Runner>(
            *this, inference_graph(wanted), [this, wanted] { return inference_graph(wanted); },
            std::vector<const NamedTensors*>{&parameters}, variables(),
            RunnerOptions{.is_ready = opened != nullptr, .check_unread = checking_unread()});
      });
      std::lock_guard lock(runners_mutex);
      runner = std::move(made);
    }
    return *runner;
  }

  /// A run that changes no values. It sees the parameters either before or after a concurrent step, never in between.
  /// @param exchange  null: the run involves no other ranks.
  std::vector<Datum> read(const Runner& runner, const Feeds& feeds, const Datum& labels, const RunOptions* run_options,
                          Exchange* exchange = nullptr) {
    struct Reading {
      explicit Reading(exec::Variables& variables) : reading(variables) {}
      const exec::Variables::Reading reading;
      ExchangesOfRun exchanges;
    };
    const auto reading = std::make_shared<Reading>(*variables());
    if (exchange) reading->exchanges.add(*exchange);
    bring_to_host();
    look();
    std::vector<Datum> outputs;
    reading->exchanges.report_failure([&] { outputs = run(runner, runner.arrange(feeds, labels), {run_options, reading}); });
    return outputs;
  }

  std::vector<Datum> run(const Runner& runner, std::vector<Datum> arranged, const Call& call, std::span<const Datum> bound_outputs = {},
                         std::span<const exec::OutputMemory> output_memory = {}) {
    check_run_options(call.options);
    std::shared_ptr<const Monitor> monitor = current_monitor();
    const std::shared_ptr<const Executable> executable = runner.executable(monitor);
    // A monitored value may exist only in another of the trainer's graphs. Only a step without a separate update has all of them.
    const bool is_whole_step = &runner == step.get() && !update;
    if (monitor && !is_whole_step && !executable->watches_any()) monitor.reset();
    std::vector<Datum> outputs(executable->output_names.size());
    execute(executable, arranged, outputs,
            {.bound = bound_outputs,
             .memory = output_memory,
             .options = call.options,
             .monitor = std::move(monitor),
             .random_id = random_id(),
             .committed = runner.updates_early() ? &half_updated : nullptr,
             .held = call.held});
    outputs.resize(executable->num_fetched);
    return outputs;
  }

  mutable std::mutex runners_mutex;  // against trim(), which other threads of the job call
  std::mutex making_mutex;           // serialises the making of graphs on first use
  NamedTensors momentum, scalars;
  std::vector<Datum> step_bound, update_bound;  // for each output: memory of the value that it updates
  uint64_t num_steps = 0;
  int64_t num_updates = 0;
  int accumulated_steps = 0;  // steps since the last update
  bool averages_used = false;
  std::atomic<bool> half_updated = false;  // a step has started early updates and not ended
  std::unique_ptr<Runner> step, update, gradients, inference, loss, evaluation;
  std::unique_ptr<StayingValues> staying;  // null: steps write to the host's memory
  bool is_state_shown = false;             // a caller may read and write the optimizer's state from now on
};

}  // namespace treadle::train
