// JointModule: a forward and backward graph with a Yield between, run part by part.
#include <fmt/format.h>

#include <algorithm>

#include "core/allocation.h"
#include "exec/frame.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "session/model.h"
#include "session/stoppable_run.h"
#include "train/runner.h"
#include "train/training_graph.h"
#include "treadle/error.h"
#include "treadle/train.h"

namespace treadle::train {

struct JointModule::Impl : Runtime {
  Impl(const Model& source, const JointOptions& options)
      : Runtime(in_training(options.session), "the module"), model(with_own_statistics(source)) {
    AllocationScope scope(&memory, MemoryClass::weights);
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
    train::finish(graph, outputs, Runtime::options);
    if (devices.any()) devices.read_groups(*model.impl().import());
    runner = std::make_unique<Runner>(*this, std::move(made.graph), std::vector<const NamedTensors*>{&parameters, &states});
    keep_limits([this] { runner->program().frames().trim(); });
  }

  ~Impl() { let_limits_go(); }

  static SessionOptions in_training(const SessionOptions& given) {
    check_session_options(given);
    SessionOptions session = given;
    session.mode = SessionMode::training;
    return session;
  }

  Model model;
  std::vector<std::string> output_names;
  NamedTensors parameters, states;
  std::vector<Datum> bound;
  size_t num_gradients = 0;
  std::unique_ptr<Runner> runner;
};

struct JointModule::Run::Impl {
  std::shared_ptr<JointModule::Impl> module;
  std::shared_ptr<StoppableRun> run;  // null after the backward pass
  std::vector<Tensor> outputs;
};

JointModule::Run::Run(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JointModule::Run::~Run() = default;
JointModule::Run::Run(Run&&) noexcept = default;
JointModule::Run& JointModule::Run::operator=(Run&&) noexcept = default;
const std::vector<Tensor>& JointModule::Run::outputs() const { return impl_->outputs; }

NamedTensors JointModule::Run::backward(std::span<const Tensor> grad_outputs) {
  if (!impl_->run) throw Error(ErrorCode::invalid_argument, "the backward pass has run already");
  if (impl_->outputs.empty()) throw Error(ErrorCode::invalid_argument, "the forward pass has not run to its end");
  if (grad_outputs.size() != impl_->outputs.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} gradients for {} outputs", grad_outputs.size(), impl_->outputs.size()));
  for (size_t i = 0; i < grad_outputs.size(); ++i)
    if (grad_outputs[i].shape() != impl_->outputs[i].shape() || grad_outputs[i].dtype() != impl_->outputs[i].dtype())
      throw Error(ErrorCode::invalid_argument, fmt::format("the gradient of \"{}\" is {}, the output is {}", impl_->module->output_names[i],
                                                           describe(grad_outputs[i]), describe(impl_->outputs[i])));
  const std::shared_ptr<StoppableRun> run = std::move(impl_->run);
  const JointModule::Impl& module = *impl_->module;
  run->resume(std::vector<Datum>(grad_outputs.begin(), grad_outputs.end()));
  if (!run->advance()) throw Error(ErrorCode::internal, "a second Yield");
  const std::vector<Datum> results = run->take_outputs();
  NamedTensors named;
  for (size_t i = 0; i < module.num_gradients; ++i) named.emplace(module.runner->graph().output_names[i], results[i].tensor());
  return named;
}

JointModule::JointModule(const Model& model, const JointOptions& options) : impl_(std::make_shared<Impl>(model, options)) {}
JointModule::~JointModule() = default;
JointModule::JointModule(JointModule&&) noexcept = default;
JointModule& JointModule::operator=(JointModule&&) noexcept = default;

size_t JointModule::Run::steps_left() const { return impl_->outputs.empty() && impl_->run ? impl_->run->run().steps_left() : 0; }

size_t JointModule::Run::advance_steps(size_t count) {
  if (!impl_->outputs.empty()) return 0;
  impl_->run->advance(count);
  const size_t left = impl_->run->run().steps_left();
  if (left == 0)
    for (const Datum& value : impl_->run->run().yielded()) impl_->outputs.push_back(value.tensor());
  return left;
}

JointModule::Run JointModule::begin(const Feeds& feeds, const RunOptions* options) {
  check_run_options(options);
  auto run = std::make_unique<Run::Impl>();
  run->module = impl_;
  run->run = std::make_shared<StoppableRun>(impl_, impl_->runner->executable(), options, nullptr, "joint module");
  run->run->start(impl_->runner->arrange(feeds, {}), impl_->bound, nullptr, /*compiled=*/false);
  return Run(std::move(run));
}

JointModule::Run JointModule::forward(const Feeds& feeds, const RunOptions* options) {
  Run run = begin(feeds, options);
  run.advance_steps(SIZE_MAX);
  return run;
}

MemoryStatistics JointModule::memory_statistics() const { return impl_->memory.account->statistics(); }
void JointModule::set_memory_limit(size_t limit_bytes) { impl_->set_memory_limit(limit_bytes); }
std::string JointModule::end_profiling() { return impl_->end_profiling(); }
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
