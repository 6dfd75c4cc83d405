// The interface of Trainer: steps, evaluation, prediction, gradients, and access to the values.
#include <fmt/format.h>

#include <algorithm>

#include "exec/run/trace_marks.h"
#include "train/trainer/trainer_impl.h"
#include "treadle/error.h"
#include "treadle/train.h"

namespace treadle::train {

Trainer::Trainer(const Model& model, const TrainerOptions& options) : impl_(std::make_unique<Impl>(model, options)) {}
Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

double Trainer::step(const Feeds& feeds, const Tensor& labels, const RunOptions* options) {
  const exec::PartMark mark("treadle step");
  return impl_->train_step(feeds, labels, options);
}

double Trainer::evaluate(const Feeds& feeds, const Tensor& labels, const RunOptions* options) {
  const std::vector<Datum> outputs = impl_->read(impl_->make_inference(impl_->loss, {.loss = true}), feeds, labels, options);
  return static_cast<double>(*outputs[0].tensor().data<float>());
}

std::vector<Datum> Trainer::predict(const Feeds& feeds, const RunOptions* options) {
  return impl_->read(impl_->make_inference(impl_->inference, {.outputs = true}), feeds, {}, options);
}

Trainer::Evaluated Trainer::evaluate_with_outputs(const Feeds& feeds, const Tensor& labels, const RunOptions* options) {
  std::vector<Datum> outputs =
      impl_->read(impl_->make_inference(impl_->evaluation, {.loss = true, .outputs = true}), feeds, labels, options);
  const auto loss = static_cast<double>(*outputs[0].tensor().data<float>());
  outputs.erase(outputs.begin());
  return {loss, std::move(outputs)};
}

NamedTensors Trainer::gradients(const Feeds& feeds, const Tensor& labels, const RunOptions* options) {
  const Runner& runner = impl_->make_gradients();
  const std::vector<Datum> outputs = impl_->read(runner, feeds, labels, options, impl_->ranks ? &impl_->ranks->gradients() : nullptr);
  NamedTensors named;
  for (size_t i = 0; i < outputs.size(); ++i) named.emplace(runner.graph().output_names[i], outputs[i].tensor());
  return named;
}

const NamedTensors& Trainer::parameters() const {
  impl_->bring_to_host();
  return impl_->hand_out(impl_->parameters);
}
const NamedTensors& Trainer::states() const {
  impl_->bring_to_host();
  return impl_->hand_out(impl_->states);
}
NamedTensors Trainer::parameter_views() const {
  impl_->bring_to_host();
  return impl_->lend(impl_->parameters);
}
NamedTensors Trainer::state_views() const {
  impl_->bring_to_host();
  return impl_->lend(impl_->states);
}
const NamedTensors& Trainer::momentum() const { return impl_->shown_state(impl_->momentum); }
const NamedTensors& Trainer::optimizer_state() const { return impl_->shown_state(impl_->optimizer_state); }
NamedTensors Trainer::joint_optimizer_state() const {
  impl_->bring_to_host();
  if (!impl_->ranks) return impl_->optimizer_state;
  return impl_->ranks->joint_state(impl_->optimizer_state, impl_->parameters, state_names(impl_->options), std::string(kGradient));
}
NamedTensors Trainer::averages() const {
  if (impl_->options.ema_decay > 0) impl_->shown_state(impl_->optimizer_state);
  return impl_->averages(impl_->averages_used);
}
void Trainer::use_averages(bool use) { impl_->use_averages(use); }
bool Trainer::averages_used() const { return impl_->averages_used; }
int64_t Trainer::num_updates() const { return impl_->num_updates; }
TrainerPosition Trainer::position() const { return {impl_->num_steps, impl_->num_updates, impl_->accumulated_steps}; }
void Trainer::set_position(const TrainerPosition& position) {
  if (position.num_updates < 0 || position.accumulated_steps < 0 || position.accumulated_steps >= impl_->options.accumulation_steps)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} updates and {} accumulated steps of {}: a trainer is never there", position.num_updates,
                            position.accumulated_steps, impl_->options.accumulation_steps));
  impl_->num_steps = position.num_steps;
  impl_->num_updates = position.num_updates;
  impl_->accumulated_steps = position.accumulated_steps;
}
std::optional<LossScale> Trainer::loss_scale() const { return impl_->scaler ? std::optional(impl_->scaler->state()) : std::nullopt; }
void Trainer::set_loss_scale(const LossScale& scale) {
  if (!impl_->scaler) throw Error(ErrorCode::invalid_argument, "the loss is not scaled: that goes with precision float16");
  impl_->scaler->set_state(scale);
}
const TrainerOptions& Trainer::options() const { return impl_->options; }
const Model& Trainer::model() const { return impl_->model; }
double Trainer::scheduled_rate() const { return impl_->scheduled_rate(); }
const std::vector<std::string>& Trainer::output_names() const { return impl_->output_names; }
double Trainer::learning_rate() const { return impl_->options.learning_rate; }
void Trainer::set_learning_rate(double rate) {
  TrainerOptions changed = impl_->options;
  changed.learning_rate = rate;
  check_options(changed);
  impl_->options.learning_rate = rate;
}

void Trainer::change(const std::function<void()>& write) {
  struct Noted {
    Impl& impl;
    ~Noted() { impl.note_changed(); }
  };
  const exec::Variables::Writing writing(*impl_->variables());
  const Noted noted{*impl_};
  if (impl_->staying) impl_->staying->leave();
  const bool was_state_shown = impl_->is_state_shown;  // `write` gets the state only for this call, so the flag is restored
  const bool was_half_updated = impl_->half_updated.exchange(false);
  try {
    write();
  } catch (...) {
    impl_->half_updated = was_half_updated;
    throw;
  }
  impl_->is_state_shown = was_state_shown;
}

void Trainer::set_monitor(Monitor monitor) { impl_->set_monitor(std::move(monitor)); }
MemoryStatistics Trainer::memory_statistics() const { return impl_->memory.account->statistics(); }
void Trainer::set_memory_limit(size_t limit_bytes) { impl_->set_memory_limit(limit_bytes); }
std::vector<NodeCounter> Trainer::node_counters() const { return impl_->Runtime::node_counters(impl_->executables()); }
void Trainer::reset_node_counters() const { impl_->Runtime::reset_node_counters(impl_->executables()); }
std::string Trainer::end_profiling() { return impl_->end_profiling(impl_->executables(), TraceFormat::chrome); }
void Trainer::start_profiling() { impl_->start_profiling({}); }
void Trainer::pause_profiling() { impl_->profiling().set(false); }
void Trainer::resume_profiling() { impl_->profiling().set(true); }
Profile Trainer::profile() const { return recorded_profile(impl_->profile_plan(impl_->profiling()), impl_->profiling()); }
Profiler Trainer::profiler(const ProfilerOptions& options) {
  auto plan = [impl = impl_.get()](const Profiling& of) { return impl->profile_plan(of); };
  return Profiler(std::make_unique<Profiler::Impl>(nullptr, *impl_, options, std::move(plan)));
}

// A feed that only another of the trainer's graphs reads is accepted, so that predict() can take the batches of evaluate().
void Trainer::Impl::check_unread(const std::string& fed) const {
  std::vector<std::string> inputs = step->fed_names();
  std::erase(inputs, kLabels);
  for (const ValueInfo& info : model.inputs()) inputs.push_back(info.name);
  for (const ValueInfo& info : loss_inputs(model, options).feeds) inputs.push_back(info.name);
  if (std::ranges::find(inputs, fed) != inputs.end()) return;
  std::ranges::sort(inputs);
  inputs.erase(std::ranges::unique(inputs).begin(), inputs.end());
  refuse_feed(model, fed, inputs);
}

profile::ProfilePlan Trainer::Impl::profile_plan(const Profiling& of) const {
  profile::ProfilePlan plan = Runtime::profile_plan(executables(), of);
  if (of.window().limits().memory) add_held(plan.held);
  if (of.names_passes())
    name_passes(plan.profile, [&] {
      std::unique_ptr<Graph> graph = step_graph(Runtime::options, /*simplified=*/true);
      optimise(*graph, Runtime::options);
      return std::shared_ptr<const Graph>(std::move(graph));
    });
  return plan;
}

void Trainer::save(const std::string& path, const Metadata& metadata) const {
  const NamedTensors merged = impl_->merged();
  save_with(impl_->model, std::vector<const NamedTensors*>{&merged, &impl_->states}, metadata, path);
}
std::string Trainer::to_bytes(const Metadata& metadata) const {
  const NamedTensors merged = impl_->merged();
  return encode_with(impl_->model, std::vector<const NamedTensors*>{&merged, &impl_->states}, metadata);
}

std::string Trainer::to_text() const { return print(impl_->step->graph()); }

}  // namespace treadle::train
