// The interface of Trainer: steps, evaluation, prediction, gradients, and access to the values. Also determines the inputs of steps.
#include <algorithm>
#include <iterator>

#include "exec/run/trace_marks.h"
#include "train/data/samples.h"
#include "train/graph/losses.h"
#include "train/graph/optimizers.h"
#include "train/options/options.h"
#include "train/trainer/trainer_impl.h"
#include "treadle/data.h"
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
  const std::vector<Datum> outputs = impl_->read(impl_->inference({.loss = true}), feeds, labels, options);
  return static_cast<double>(*outputs[0].tensor().data<float>());
}

std::vector<Datum> Trainer::predict(const Feeds& feeds, const RunOptions* options) {
  return impl_->read(impl_->inference({.outputs = true}), feeds, {}, options);
}

Trainer::Evaluated Trainer::evaluate_with_outputs(const Feeds& feeds, const Tensor& labels, const RunOptions* options) {
  std::vector<Datum> outputs = impl_->read(impl_->inference({.loss = true, .outputs = true}), feeds, labels, options);
  const auto loss = static_cast<double>(*outputs[0].tensor().data<float>());
  outputs.erase(outputs.begin());
  return {loss, std::move(outputs)};
}

NamedTensors Trainer::gradients(const Feeds& feeds, const Tensor& labels, const RunOptions* options) {
  const Runner& runner = impl_->gradients();
  DataParallel* const ranks = impl_->graphs.ranks.get();
  const std::vector<Datum> outputs = impl_->read(runner, feeds, labels, options, ranks ? &ranks->gradients() : nullptr);
  NamedTensors named;
  for (size_t i = 0; i < outputs.size(); ++i) named.emplace(runner.graph().output_names[i], outputs[i].tensor());
  return named;
}

const NamedTensors& Trainer::parameters() const {
  impl_->values.bring_to_host();
  return impl_->values.hand_out(impl_->values.parameters);
}
const NamedTensors& Trainer::states() const {
  impl_->values.bring_to_host();
  return impl_->values.hand_out(impl_->values.states);
}
NamedTensors Trainer::parameter_views() const {
  impl_->values.bring_to_host();
  return impl_->values.lend(impl_->values.parameters);
}
NamedTensors Trainer::state_views() const {
  impl_->values.bring_to_host();
  return impl_->values.lend(impl_->values.states);
}
const NamedTensors& Trainer::momentum() const { return impl_->values.show_momentum(); }
const NamedTensors& Trainer::optimizer_state() const { return impl_->values.show_state(); }
NamedTensors Trainer::joint_optimizer_state() const {
  const StepValues& values = impl_->values;
  values.bring_to_host();
  if (!impl_->graphs.ranks) return values.optimizer_state;
  return impl_->graphs.ranks->joint_state(values.optimizer_state, values.parameters, state_names(options()), std::string(kGradient));
}
NamedTensors Trainer::averages() const {
  if (options().ema_decay > 0) impl_->values.show_state();
  return impl_->values.averages();
}
void Trainer::use_averages(bool use) {
  if (options().ema_decay <= 0) throw Error(ErrorCode::invalid_argument, "the trainer keeps no averages: it was made without ema_decay");
  impl_->values.use_averages(use);
}
bool Trainer::averages_used() const { return impl_->values.averages_used(); }
int64_t Trainer::num_updates() const { return position().num_updates; }
TrainerPosition Trainer::position() const { return impl_->progress.position(); }
void Trainer::set_position(const TrainerPosition& position) { impl_->progress.move_to(position); }
std::optional<LossScale> Trainer::loss_scale() const {
  const LossScaler* const scaler = impl_->graphs.scaler.get();
  return scaler ? std::optional(scaler->state()) : std::nullopt;
}
void Trainer::set_loss_scale(const LossScale& scale) {
  if (!impl_->graphs.scaler) throw Error(ErrorCode::invalid_argument, "the loss is not scaled: that goes with precision float16");
  impl_->graphs.scaler->set_state(scale);
}
const TrainerOptions& Trainer::options() const { return impl_->graphs.options; }
const Model& Trainer::model() const { return impl_->graphs.model; }
double Trainer::scheduled_rate() const { return impl_->progress.rate(); }
const std::vector<std::string>& Trainer::output_names() const { return impl_->graphs.output_names; }
double Trainer::learning_rate() const { return options().learning_rate; }
void Trainer::set_learning_rate(double rate) {
  TrainerOptions changed = options();
  changed.learning_rate = rate;
  trainer_option_table().check(changed);
  impl_->graphs.options.learning_rate = rate;
}

void Trainer::change(const std::function<void()>& write) { impl_->values.change(write); }

void Trainer::set_monitor(Monitor monitor) { impl_->set_monitor(std::move(monitor)); }
std::vector<UnfinishedRun> Trainer::close(int64_t timeout_ms) { return impl_->in_flight->close(timeout_ms); }
bool Trainer::closed() const { return impl_->in_flight->closed(); }
MemoryStatistics Trainer::memory_statistics() const { return impl_->memory.account->statistics(); }
void Trainer::set_memory_limit(size_t limit_bytes) { impl_->set_memory_limit(limit_bytes); }
std::vector<NodeCounter> Trainer::node_counters() const { return impl_->node_counters(impl_->runners.executables()); }
void Trainer::reset_node_counters() const { impl_->reset_node_counters(impl_->runners.executables()); }
std::string Trainer::end_profiling() { return impl_->end_profiling(impl_->runners.executables(), TraceFormat::chrome); }
void Trainer::start_profiling() { impl_->start_profiling({}); }
void Trainer::pause_profiling() { impl_->profiling().set(false); }
void Trainer::resume_profiling() { impl_->profiling().set(true); }
Profile Trainer::profile() const { return recorded_profile(impl_->profile_plan(impl_->profiling()), impl_->profiling()); }
Profiler Trainer::profiler(const ProfilerOptions& options) {
  auto plan = [impl = impl_.get()](const Profiling& of) { return impl->profile_plan(of); };
  return Profiler(std::make_unique<Profiler::Impl>(nullptr, *impl_, options, std::move(plan)));
}

void Trainer::save(const std::string& path, const Metadata& metadata) const {
  const NamedTensors merged = impl_->merged_parameters();
  save_with(impl_->graphs.model, std::vector<const NamedTensors*>{&merged, &impl_->values.states}, metadata, path);
}
std::string Trainer::to_bytes(const Metadata& metadata) const {
  const NamedTensors merged = impl_->merged_parameters();
  return encode_with(impl_->graphs.model, std::vector<const NamedTensors*>{&merged, &impl_->values.states}, metadata);
}

std::string Trainer::to_text() const { return print(impl_->runners[Runners::step].graph()); }

namespace {

// Returns the classes of a loss whose labels are classes; nullopt if the model does not declare their number.
std::optional<ClassRange> classes_of(const TrainerOptions& options, const Model& model) {
  if (options.loss != Loss::softmax_cross_entropy && options.loss != Loss::negative_log_likelihood) return std::nullopt;
  for (const ValueInfo& info : model.outputs()) {
    if (!options.output.empty() && info.name != options.output) continue;
    const auto rank = static_cast<int64_t>(info.shape.size()), axis = options.class_axis + (options.class_axis < 0 ? rank : 0);
    const int64_t* count = axis >= 0 && axis < rank ? std::get_if<int64_t>(&info.shape[static_cast<size_t>(axis)]) : nullptr;
    return count ? std::optional(ClassRange{.count = *count, .ignored = options.ignore_index}) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

LabelForm label_form(const TrainerOptions& options, const Model& model) {
  const LossLabels kind = row_of(options.loss).labels;
  if (kind == LossLabels::none) return {.dtype = DType::undefined};
  if (kind == LossLabels::classes)
    return {.dtype = options.int32_labels ? DType::int32 : DType::int64, .classes = classes_of(options, model)};
  if (kind == LossLabels::of_model) {
    const std::optional<ValueInfo> labels = loss_inputs(model, options).labels;
    if (!labels) return {.dtype = DType::undefined};
    return {.dtype = labels->dtype, .extents = labels->has_rank ? std::optional(sample_extents(*labels)) : std::nullopt};
  }
  const std::vector<ValueInfo> outputs = model.outputs();
  const auto output = std::find_if(outputs.begin(), outputs.end(),
                                   [&](const ValueInfo& info) { return options.output.empty() || info.name == options.output; });
  if (output == outputs.end() || !output->has_rank) return {.dtype = DType::float32};
  return {.dtype = output->dtype, .extents = sample_extents(*output)};
}

std::vector<ValueInfo> fed_inputs(const TrainerOptions& options, const Model& model) {
  std::vector<ValueInfo> inputs = model.inputs();
  std::ranges::copy(loss_inputs(model, options).feeds, std::back_inserter(inputs));
  return inputs;
}

}  // namespace treadle::train
