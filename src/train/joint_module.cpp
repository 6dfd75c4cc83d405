// JointModule: a forward and backward graph with a Yield between, run part by part.
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "core/thread_pool.h"
#include "exec/placed_program.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "session/devices.h"
#include "session/model.h"
#include "sharing/turn.h"
#include "train/runner.h"
#include "train/training_graph.h"
#include "treadle/error.h"
#include "treadle/sharing.h"
#include "treadle/train.h"

namespace treadle::train {

struct JointModule::Impl {
  Impl(const Model& source, const JointOptions& options) : model(with_own_statistics(source)), devices(session_options(options)) {
    pool = options.intra_op_num_threads == 0 ? ThreadPool::shared() : std::make_shared<ThreadPool>(options.intra_op_num_threads);
    job = options.job ? options.job : environment_job();
    TrainingGraph made = make_training_graph(model, {options.parameters, options.frozen}, true);
    Graph& graph = *made.graph;
    output_names = options.outputs.empty() ? graph.output_names : options.outputs;
    std::vector<ValueId> ys, xs;
    for (const std::string& name : output_names) {
      ys.push_back(find_output(graph, name));
      if (graph.type(ys.back()).dtype != DType::float32)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the output \"{}\" is {}; a gradient flows into float32 only; choose the outputs", name,
                                to_string(graph.type(ys.back()))));
    }
    for (const std::string& name : options.inputs) {
      const ValueId id = graph.find_value(name);
      if (id == kNoValue || std::find(graph.inputs.begin(), graph.inputs.end(), id) == graph.inputs.end())
        throw Error(ErrorCode::not_found, fmt::format("the model has no input \"{}\"", name));
      xs.push_back(id);
    }
    const NodeId yield = graph.add_node(
        {.op_type = "Yield", .inputs = ys, .domain = "treadle", .name = "yield", .num_outputs = static_cast<int>(ys.size())});
    infer_node(graph, yield);
    const std::vector<ValueId> handed_in = graph.node(yield).outputs;
    const std::vector<ValueId> grads = add_backward(made, model, ys, handed_in, xs);
    std::vector<std::pair<std::string, ValueId>> outputs;
    for (size_t i = 0; i < grads.size(); ++i)
      outputs.emplace_back(i < made.parameters.size() ? made.parameters[i] : options.inputs[i - made.parameters.size()], grads[i]);
    num_gradients = outputs.size();
    parameters = copy_initializers(model, made.parameters);
    std::vector<std::string> state_names;
    for (const TrainingGraph::State& state : made.states) state_names.push_back(state.name);
    states = copy_initializers(model, state_names);
    for (size_t i = 0; i < num_gradients; ++i) bound.emplace_back();
    for (const TrainingGraph::State& state : made.states) {
      outputs.emplace_back(state.name, state.updated);
      bound.emplace_back(states.at(state.name));
    }
    train::finish(graph, outputs, true);
    runner = std::make_unique<Runner>(std::move(made.graph), std::vector<const NamedTensors*>{&parameters, &states},
                                      exec::ProgramOptions{.parallel = devices.any(), .pieces_in_place = !devices.any()});
    if (devices.any()) devices.read_groups(*model.impl().import());
  }

  static SessionOptions session_options(const JointOptions& options) {
    SessionOptions session;
    session.device = options.device;
    session.group2ctx = options.group2ctx;
    session.argument_devices = options.argument_devices;
    return session;
  }

  // One for every run in flight: a run has the streams and arenas for itself. Null: the host runs.
  std::unique_ptr<exec::PlacedProgram> take_placed() {
    if (!devices.any()) return nullptr;
    std::lock_guard lock(idle_mutex);
    if (idle.empty()) return devices.place(runner->program(), /*training=*/true);
    auto placed = std::move(idle.back());
    idle.pop_back();
    return placed;
  }
  void give_back(std::unique_ptr<exec::PlacedProgram> placed) {
    std::lock_guard lock(idle_mutex);
    idle.push_back(std::move(placed));
  }

  sharing::JobState* job_state() const { return job ? job->state().get() : nullptr; }
  /// fn as a part of a run under way
  template <typename Fn>
  void compute(Fn&& fn) const {
    PoolCaller caller(pool.get());
    sharing::RunScope shared(job_state(), pool->num_threads());
    fn();
  }

  Model model;
  std::shared_ptr<ThreadPool> pool;
  std::shared_ptr<Job> job;  // null: none
  std::vector<std::string> output_names;
  NamedTensors parameters, states;
  std::vector<Datum> bound;
  size_t num_gradients = 0;
  uint64_t num_runs = 0;
  std::unique_ptr<Runner> runner;
  SessionDevices devices;
  std::mutex idle_mutex;
  std::vector<std::unique_ptr<exec::PlacedProgram>> idle;
};

struct JointModule::Run::Impl {
  std::shared_ptr<JointModule::Impl> module;
  std::unique_ptr<exec::Frame> frame;           // on the host; null after the backward pass
  std::unique_ptr<exec::PlacedProgram> placed;  // on devices; likewise
  std::vector<Tensor> outputs;
};

JointModule::Run::Run(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JointModule::Run::~Run() = default;
JointModule::Run::Run(Run&&) noexcept = default;
JointModule::Run& JointModule::Run::operator=(Run&&) noexcept = default;
const std::vector<Tensor>& JointModule::Run::outputs() const { return impl_->outputs; }

NamedTensors JointModule::Run::backward(std::span<const Tensor> grad_outputs) {
  if (!impl_->frame && !impl_->placed) throw Error(ErrorCode::invalid_argument, "the backward pass has run already");
  if (impl_->outputs.empty()) throw Error(ErrorCode::invalid_argument, "the forward pass has not run to its end");
  if (grad_outputs.size() != impl_->outputs.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} gradients for {} outputs", grad_outputs.size(), impl_->outputs.size()));
  for (size_t i = 0; i < grad_outputs.size(); ++i)
    if (grad_outputs[i].shape() != impl_->outputs[i].shape() || grad_outputs[i].dtype() != impl_->outputs[i].dtype())
      throw Error(ErrorCode::invalid_argument, fmt::format("the gradient of \"{}\" is {}, the output is {}", impl_->module->output_names[i],
                                                           describe(grad_outputs[i]), describe(impl_->outputs[i])));
  const std::unique_ptr<exec::Frame> frame = std::move(impl_->frame);
  std::unique_ptr<exec::PlacedProgram> placed = std::move(impl_->placed);
  const std::vector<Datum> values(grad_outputs.begin(), grad_outputs.end());
  JointModule::Impl& module = *impl_->module;
  std::vector<Datum> results(module.runner->graph().outputs.size());
  auto run_backward = [&](auto& run) {
    module.compute([&] {
      run.resume(values);
      if (!run.advance()) throw Error(ErrorCode::internal, "a second Yield");
      run.take_outputs(results);
    });
  };
  if (placed) {
    run_backward(*placed);
    module.give_back(std::move(placed));
  } else {
    run_backward(*frame);
  }
  NamedTensors named;
  for (size_t i = 0; i < module.num_gradients; ++i) named.emplace(module.runner->graph().output_names[i], results[i].tensor());
  return named;
}

JointModule::JointModule(const Model& model, const JointOptions& options) : impl_(std::make_shared<Impl>(model, options)) {}
JointModule::~JointModule() = default;
JointModule::JointModule(JointModule&&) noexcept = default;
JointModule& JointModule::operator=(JointModule&&) noexcept = default;

size_t JointModule::Run::steps_left() const {
  if (!impl_->outputs.empty()) return 0;
  if (impl_->placed) return impl_->placed->steps_left();
  return impl_->frame ? impl_->frame->steps_left() : 0;
}

size_t JointModule::Run::advance_steps(size_t count) {
  if (!impl_->outputs.empty()) return 0;
  auto advance = [&](auto& run) {
    size_t left = 0;
    impl_->module->compute([&] { left = run.advance_steps(count); });
    if (left > 0) return;
    for (const Datum& value : run.yielded()) impl_->outputs.push_back(value.tensor());
  };
  if (impl_->placed)
    advance(*impl_->placed);
  else
    advance(*impl_->frame);
  return steps_left();
}

JointModule::Run JointModule::begin(const Feeds& feeds) {
  auto run = std::make_unique<Run::Impl>();
  run->module = impl_;
  exec::RunControl control;
  control.pool = impl_->pool->num_threads() > 1 ? impl_->pool.get() : nullptr;
  control.run_id = impl_->num_runs++;
  control.job = impl_->job_state();
  const std::vector<Datum> arranged = impl_->runner->arrange(feeds, {}, {});
  run->placed = impl_->take_placed();
  if (run->placed) {
    run->placed->start(arranged, control, impl_->bound);
  } else {
    run->frame = std::make_unique<exec::Frame>(impl_->runner->program());
    run->frame->start(arranged, impl_->bound, control);
  }
  return Run(std::move(run));
}

JointModule::Run JointModule::forward(const Feeds& feeds) {
  Run run = begin(feeds);
  run.advance_steps(SIZE_MAX);
  return run;
}

const std::vector<std::string>& JointModule::output_names() const { return impl_->output_names; }
const NamedTensors& JointModule::parameters() const { return impl_->parameters; }
const NamedTensors& JointModule::states() const { return impl_->states; }
void JointModule::save(const std::string& path, const Metadata& metadata) const {
  save_with(impl_->model, std::vector<const NamedTensors*>{&impl_->parameters, &impl_->states}, metadata, path);
}
std::string JointModule::to_bytes(const Metadata& metadata) const {
  return encode_with(impl_->model, std::vector<const NamedTensors*>{&impl_->parameters, &impl_->states}, metadata);
}

}  // namespace treadle::train
