// JointModule: a forward and backward graph with a Yield between, run part by part.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "core/allocation.h"
#include "core/nearest.h"
#include "exec/program/profile_plan.h"
#include "exec/run/frame.h"
#include "exec/run/trace_marks.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "session/model.h"
#include "session/stoppable_run.h"
#include "train/joint_graph.h"
#include "train/row_gradients.h"
#include "train/runner.h"
#include "train/training_graph.h"
#include "treadle/error.h"
#include "treadle/train.h"

namespace treadle::train {
namespace {

const Storage* storage_of(const Datum& datum) { return datum.is_tensor() ? datum.tensor().storage().get() : nullptr; }

}  // namespace

struct JointModule::Impl : Runtime {
  profile::ProfilePlan profile_plan(const Profiling& of) const override;

  Impl(const Model& source, const JointOptions& given)
      : Runtime(in_training(given.session), "the module"),
        model(with_own_initializers(source)),
        joint_options(given),
        forward_only(given.forward_only) {
    const Making scope(*this, source);
    making(name, [&] { make(given); });
    keep_limits([this] { runner->trim(); });
  }

  void make(const JointOptions& given) {
    if ((given.inference || !given.held.empty()) && !forward_only)
      throw Error(ErrorCode::invalid_argument, "inference and held values are for modules without a backward pass");
    Joint joint = make_joint(/*simplified=*/true);
    TrainingGraph& made = joint.training;
    output_names = joint.output_names;
    num_differentiable = joint.num_differentiable;
    result_of = joint.result_of, rows_of = joint.rows_of;
    num_results = joint.outputs.size() - made.states.size();
    if (!forward_only) {
      gradient_names = made.parameters;
      gradient_names.insert(gradient_names.end(), given.inputs.begin(), given.inputs.end());
    }
    {
      const AllocationScope scope(&memory, MemoryClass::parameters);
      parameters = copy_initializers(model, made.parameters);
      keep_states(made);
    }
    devices.read_groups(model);
    for (const auto& [name, tensor] : given.held)
      if (const ValueId id = made.graph->find_value(name); !made.graph->value(id).uses.empty() || made.graph->is_output(id))
        places_of_held.emplace(name, held->add(name, tensor));
    joint_options.held.clear();
    if (!forward_only && !made.parameters.empty()) joint_options.parameters = made.parameters;  // with gradients; also the next time
    held->watch(true);
    auto again = [this] { return make_joint(/*simplified=*/false).training.graph; };
    runner = std::make_unique<Runner>(*this, std::move(made.graph), again, std::vector<const NamedTensors*>{&parameters, &states}, held,
                                      forward_only ? std::nullopt : std::optional<std::vector<std::string>>(std::in_place));
    is_random = draws_numbers(runner->graph());
    copied = read_behind_yield(runner->graph());
    find_fed_states(given.states);
  }

  ~Impl() { let_limits_go(); }

  /// The graph with its outputs: results, then running statistics.
  struct Joint {
    TrainingGraph training;
    Outputs outputs;
    std::vector<std::string> output_names;
    size_t num_differentiable = 0;
    std::vector<int> result_of;  // per gradient; -1: there is none
    std::vector<int> rows_of;    // per gradient: the result with the places of its rows; -1: it is dense
  };
  /// @param simplified  false: every value of the model is there
  Joint make_joint(bool simplified) const {
    NamedTensors held_now = joint_options.held;
    for (const auto& [name, place] : places_of_held) held_now.insert_or_assign(name, held->at(place).tensor);
    const Selection selection{.parameters = joint_options.parameters,
                              .frozen = joint_options.frozen,
                              .states = joint_options.states,
                              .unbiased_variance = joint_options.unbiased_variance,
                              .held = &held_now,
                              .session = &(this->Runtime::options)};
    Joint joint;
    joint.training = make_training_graph(model, selection, !joint_options.inference);
    std::vector<ValueId> ys = find_outputs(joint);
    if (forward_only)
      for (size_t i = 0; i < ys.size(); ++i) joint.outputs.emplace_back(joint.output_names[i], ys[i]);
    else
      add_gradients(joint, std::move(ys), simplified);
    for (const TrainingGraph::State& state : joint.training.states) joint.outputs.emplace_back(state.name, state.updated);
    set_outputs(*joint.training.graph, joint.outputs, joint.training.read);
    return joint;
  }

  // What is handed out: `outputs`, then `plain_outputs`.
  std::vector<ValueId> find_outputs(Joint& joint) const {
    const Graph& graph = *joint.training.graph;
    const bool are_named = !joint_options.outputs.empty() || !joint_options.plain_outputs.empty();
    joint.output_names = are_named ? joint_options.outputs : graph.output_names;
    joint.num_differentiable = joint.output_names.size();
    std::vector<ValueId> found;
    for (const std::string& name : joint.output_names) {
      found.push_back(find_output(graph, name));
      if (!forward_only && graph.type(found.back()).dtype != DType::float32)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the output \"{}\" is {}; a gradient flows into float32 only; choose the outputs", name,
                                to_string(graph.type(found.back()))));
    }
    for (const std::string& name : joint_options.plain_outputs) {
      joint.output_names.push_back(name);
      found.push_back(find_output(graph, name));
    }
    return found;
  }

  // The Yield, the backward pass behind it, and the gradients that there are.
  void add_gradients(Joint& joint, std::vector<ValueId> ys, bool simplified) const {
    Graph& graph = *joint.training.graph;
    if (simplified) simplify_forward(joint.training, ys, Runtime::options);
    std::vector<ValueId> xs;
    for (const std::string& name : joint_options.inputs) {
      const ValueId id = graph.find_value(name);
      if (id == kNoValue || std::find(graph.inputs.begin(), graph.inputs.end(), id) == graph.inputs.end())
        throw Error(ErrorCode::not_found, fmt::format("the model has no input \"{}\"", name));
      xs.push_back(id);
    }
    const NodeId yield = graph.add_node({.op_type = "Yield",
                                         .inputs = ys,
                                         .domain = "treadle",
                                         .name = "yield",
                                         .num_outputs = static_cast<int>(joint.num_differentiable)});
    infer_node(graph, yield);
    const std::vector<ValueId> handed_in = graph.node(yield).outputs;
    ys.resize(joint.num_differentiable);
    const std::vector<ValueId> grads = add_backward(joint.training, model, ys, handed_in, xs, joint_options.zero_gradients);
    const std::vector<std::string>& names = joint.training.parameters;
    std::vector<ParameterGradient> all =
        with_rows(joint.training, std::span(grads).first(names.size()), joint_options.sparse_gradients, "sparse_gradients");
    for (size_t i = names.size(); i < grads.size(); ++i) all.push_back({grads[i]});
    for (size_t i = 0; i < all.size(); ++i) {
      const std::string& name = i < names.size() ? names[i] : joint_options.inputs[i - names.size()];
      joint.result_of.push_back(all[i].value == kNoValue ? -1 : static_cast<int>(joint.outputs.size()));
      if (all[i].value != kNoValue) joint.outputs.emplace_back(name, all[i].value);
      joint.rows_of.push_back(all[i].has_rows() ? static_cast<int>(joint.outputs.size()) : -1);
      if (all[i].has_rows()) joint.outputs.emplace_back(name + "/rows", all[i].places);
    }
  }

  // Running statistics are the last outputs, in the memory of those before: this module's own, or what is fed.
  void keep_states(const TrainingGraph& made) {
    const std::vector<std::string>& fed = joint_options.states;
    bound.resize(num_results);
    std::vector<std::string> own;
    auto is_fed = [&](const std::string& name) { return std::find(fed.begin(), fed.end(), name) != fed.end(); };
    for (const TrainingGraph::State& state : made.states)
      if (!is_fed(state.name)) own.push_back(state.name);
    states = copy_initializers(model, own);
    for (const TrainingGraph::State& state : made.states) bound.push_back(is_fed(state.name) ? Datum() : Datum(states.at(state.name)));
  }

  void find_fed_states(const std::vector<std::string>& names) {
    const std::vector<std::string>& inputs = runner->executable()->input_names;
    for (size_t result = num_results; result < runner->graph().output_names.size(); ++result) {
      const std::string& name = runner->graph().output_names[result];
      if (std::find(names.begin(), names.end(), name) == names.end()) continue;
      fed_states.push_back({position_of(inputs, name), result});
    }
  }

  /// @throws Error(not_found) for what is neither held nor a parameter.
  Tensor held_now(const std::string& name) const {
    if (const auto found = places_of_held.find(name); found != places_of_held.end()) return held->at(found->second).tensor;
    if (const auto found = parameters.find(name); found != parameters.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [held_name, place] : places_of_held) names.push_back(held_name);
    for (const auto& [parameter, tensor] : parameters) names.push_back(parameter);
    throw Error(ErrorCode::not_found, fmt::format("the module holds no \"{}\"; is it {}?", name, nearest_names(name, names)));
  }

  static std::shared_ptr<StoppableRun> make_run(const std::shared_ptr<Impl>& self, const RunOptions* options) {
    const std::shared_ptr<const Monitor> monitor = self->current_monitor();
    return std::make_shared<StoppableRun>(self, self->runner->executable(monitor), options, monitor, "joint module");
  }

  struct FedState {
    size_t feed, result;  // places among all inputs, and all outputs of the graph
  };

  Model model;
  JointOptions joint_options;  // without `held`, once that is in the member of this name
  const bool forward_only;
  bool is_random = false;
  std::vector<std::string> output_names, gradient_names;
  NamedTensors parameters, states;
  const std::shared_ptr<exec::Variables> held = std::make_shared<exec::Variables>();
  std::map<std::string, size_t> places_of_held;
  std::vector<Datum> bound;  // per result: memory that it is written to
  std::vector<FedState> fed_states;
  std::vector<int> result_of, rows_of;  // per gradient; -1: there is none, or it is dense
  std::vector<bool> copied;             // per output
  size_t num_differentiable = 0, num_results = 0;
  std::unique_ptr<Runner> runner;
};

struct JointModule::Run::Impl {
  std::shared_ptr<JointModule::Impl> module;
  std::shared_ptr<StoppableRun> run;  // null after the backward pass
  std::vector<Tensor> outputs;
  bool has_outputs = false;
  std::vector<const Storage*> callers;  // memory that is the caller's: fed, handed in, and of the outputs; sorted before the backward pass
  bool is_backward = false;
  std::vector<bool> given;             // per gradient
  std::vector<Tensor> rows;            // per gradient that has been given: which rows of the parameter it has; undefined: it is dense
  std::set<const Storage*> gradients;  // memory of those

  void take_yielded() {
    has_outputs = true;
    const std::vector<Datum> values = module->forward_only ? run->take_outputs() : run->run().yielded();
    for (size_t i = 0; i < module->output_names.size(); ++i)
      outputs.push_back(i < module->copied.size() && module->copied[i] ? values[i].tensor().clone() : values[i].tensor());
    if (module->forward_only) run.reset();
  }
};

JointModule::Run::Run(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JointModule::Run::~Run() = default;
JointModule::Run::Run(Run&&) noexcept = default;
JointModule::Run& JointModule::Run::operator=(Run&&) noexcept = default;
const std::vector<Tensor>& JointModule::Run::outputs() const { return impl_->outputs; }

void JointModule::Run::move_feed(size_t input, const Tensor& value) {
  const Runner& runner = *impl_->module->runner;
  if (!impl_->run || impl_->is_backward) throw Error(ErrorCode::invalid_argument, "the backward pass has run already, or has begun");
  if (input >= runner.fed_names().size())
    throw Error(ErrorCode::invalid_argument, fmt::format("input {} of {} that are fed", input, runner.fed_names().size()));
  impl_->run->move_feed(runner.place_of_fed(input), value);
  impl_->callers.push_back(value.storage().get());
}

void JointModule::Run::begin_backward(std::span<const Tensor> grad_outputs) {
  const JointModule::Impl& module = *impl_->module;
  if (module.forward_only) throw Error(ErrorCode::invalid_argument, "the module was made without a backward pass");
  if (!impl_->run || impl_->is_backward) throw Error(ErrorCode::invalid_argument, "the backward pass has run already, or has begun");
  if (!impl_->has_outputs) throw Error(ErrorCode::invalid_argument, "the forward pass has not run to its end");
  if (grad_outputs.size() != module.num_differentiable)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} gradients for {} outputs", grad_outputs.size(), module.num_differentiable));
  std::vector<Datum> handed_in(grad_outputs.begin(), grad_outputs.end());
  for (size_t i = 0; i < grad_outputs.size(); ++i) {
    const Tensor& output = impl_->outputs[i];
    if (!grad_outputs[i].defined()) {
      Tensor zeros(output.dtype(), output.shape());
      std::memset(zeros.raw(), 0, zeros.size_bytes());
      handed_in[i] = std::move(zeros);
    } else if (grad_outputs[i].shape() != output.shape() || grad_outputs[i].dtype() != output.dtype()) {
      throw Error(ErrorCode::invalid_argument, fmt::format("the gradient of \"{}\" is {}, the output is {}", module.output_names[i],
                                                           describe(grad_outputs[i]), describe(output)));
    }
  }
  for (const Datum& datum : handed_in) impl_->callers.push_back(storage_of(datum));
  for (const Tensor& output : impl_->outputs) impl_->callers.push_back(output.storage().get());
  std::sort(impl_->callers.begin(), impl_->callers.end());
  impl_->run->resume(handed_in);
  impl_->is_backward = true;
  impl_->given.resize(module.result_of.size());
  impl_->rows.resize(module.result_of.size());
}

std::vector<Tensor> JointModule::Run::advance_backward(std::span<const size_t> gradients) {
  const exec::PartMark mark("treadle backward");
  const JointModule::Impl& module = *impl_->module;
  if (!impl_->is_backward || !impl_->run) throw Error(ErrorCode::invalid_argument, "no backward pass has begun, or it is over");
  std::vector<int> results;
  for (size_t gradient : gradients) {
    if (gradient >= impl_->given.size() || impl_->given[gradient])
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the gradient {} of {} has been taken, or there is none", gradient, impl_->given.size()));
    impl_->given[gradient] = true;
    for (int result : {module.result_of[gradient], module.rows_of[gradient]})
      if (result >= 0) results.push_back(result);
  }
  std::shared_ptr<StoppableRun> run = std::move(impl_->run);  // after an error there is none
  if (const int32_t last = made_by(*run->executable().program, results); last >= 0)
    if (const size_t steps = run->run().steps_through(static_cast<size_t>(last)); steps > 0) run->advance(steps);
  // A gradient may be what was handed in or fed, as it is; each is the caller's to change.
  std::vector<Tensor> made;
  for (size_t gradient : gradients) {
    made.emplace_back();
    if (module.result_of[gradient] < 0) continue;
    const Datum taken = run->take_output(static_cast<size_t>(module.result_of[gradient]));
    const Storage* storage = storage_of(taken);
    const bool is_own =
        !std::binary_search(impl_->callers.begin(), impl_->callers.end(), storage) && impl_->gradients.insert(storage).second;
    made.back() = is_own ? taken.tensor() : taken.tensor().clone();
    if (const int rows = module.rows_of[gradient]; rows >= 0)
      std::tie(made.back(), impl_->rows[gradient]) = without_padding(made.back(), run->take_output(static_cast<size_t>(rows)).tensor());
  }
  if (std::find(impl_->given.begin(), impl_->given.end(), false) != impl_->given.end()) {
    impl_->run = std::move(run);
    return made;
  }
  if (!run->run().finished() && !run->advance()) throw Error(ErrorCode::internal, "a second Yield");
  run->take_outputs();  // running statistics
  return made;
}

std::vector<Tensor> JointModule::Run::backward_in_order(std::span<const Tensor> grad_outputs) {
  begin_backward(grad_outputs);
  std::vector<size_t> all(impl_->given.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return advance_backward(all);
}

const Tensor& JointModule::Run::rows(size_t gradient) const {
  static const Tensor none;
  return gradient < impl_->rows.size() ? impl_->rows[gradient] : none;
}

Feeds JointModule::Run::sparse_backward(std::span<const Tensor> grad_outputs) {
  std::vector<Tensor> gradients = backward_in_order(grad_outputs);
  Feeds named;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const std::string& name = impl_->module->gradient_names[i];
    if (!rows(i).defined())
      named.emplace(name, std::move(gradients[i]));
    else
      named.emplace(name,
                    SparseTensor{.dense_shape = impl_->module->parameters.at(name).shape(), .values = gradients[i], .indices = rows(i)});
  }
  return named;
}

NamedTensors JointModule::Run::backward(std::span<const Tensor> grad_outputs) {
  const std::vector<int>& by_rows = impl_->module->rows_of;
  if (std::any_of(by_rows.begin(), by_rows.end(), [](int rows) { return rows >= 0; }))
    throw Error(ErrorCode::invalid_argument, "the module has sparse_gradients; call sparse_backward()");
  std::vector<Tensor> gradients = backward_in_order(grad_outputs);
  NamedTensors named;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined()) named.emplace(impl_->module->gradient_names[i], std::move(gradients[i]));
  return named;
}

JointModule::JointModule(const Model& model, const JointOptions& options) : impl_(std::make_shared<Impl>(model, options)) {}
JointModule::~JointModule() = default;
JointModule::JointModule(JointModule&&) noexcept = default;
JointModule& JointModule::operator=(JointModule&&) noexcept = default;

size_t JointModule::Run::steps_left() const { return impl_->has_outputs || !impl_->run ? 0 : impl_->run->run().steps_left(); }

size_t JointModule::Run::advance_steps(size_t count) {
  if (impl_->has_outputs) return 0;
  impl_->run->advance(count);
  const size_t left = impl_->run->run().steps_left();
  if (left == 0) impl_->take_yielded();
  return left;
}

JointModule::Run JointModule::begin(const Feeds& feeds, const RunOptions* options) {
  check_run_options(options);
  if (!impl_->fed_states.empty())
    throw Error(ErrorCode::invalid_argument, "running statistics are fed: call forward_in_order(), which says where they lie");
  auto run = std::make_unique<Run::Impl>();
  run->module = impl_;
  run->run = JointModule::Impl::make_run(impl_, options);
  run->run->start(impl_->runner->arrange(feeds, {}), impl_->bound, nullptr, /*compiled=*/false);
  return Run(std::move(run));
}

JointModule::Run JointModule::forward(const Feeds& feeds, const RunOptions* options) {
  const exec::PartMark mark("treadle forward");
  Run run = begin(feeds, options);
  run.advance_steps(SIZE_MAX);
  return run;
}

JointModule::Run JointModule::forward_in_order(std::vector<Datum> feeds, const Feeding& feeding) {
  const exec::PartMark mark("treadle forward");
  auto run = std::make_unique<Run::Impl>();
  run->module = impl_;
  feeds = impl_->runner->arrange_in_order(std::move(feeds));
  std::vector<Datum> bound = impl_->bound;
  if (feeding.update_states)
    for (const auto& [feed, result] : impl_->fed_states) bound[result] = feeds[feed];
  else
    bound.assign(bound.size(), Datum());
  if (!impl_->forward_only)
    for (const Datum& feed : feeds) run->callers.push_back(storage_of(feed));
  run->run = JointModule::Impl::make_run(impl_, nullptr);
  if (feeding.draw) run->run->draw_by(*feeding.draw);
  run->run->start(std::move(feeds), bound, nullptr, /*compiled=*/false);
  Run forward(std::move(run));
  forward.advance_steps(SIZE_MAX);
  return forward;
}

const std::vector<std::string>& JointModule::input_names() const { return impl_->runner->fed_names(); }
const std::vector<std::string>& JointModule::gradient_names() const { return impl_->gradient_names; }
std::vector<std::vector<size_t>> JointModule::gradient_groups(size_t group_bytes) const {
  const exec::Program& program = impl_->runner->program();
  std::vector<std::pair<int32_t, size_t>> order;  // made by, gradient
  for (size_t g = 0; g < impl_->result_of.size(); ++g)
    order.emplace_back(impl_->result_of[g] < 0 ? -1 : made_by(program, std::span(&impl_->result_of[g], 1)), g);
  std::sort(order.begin(), order.end());
  std::vector<std::vector<size_t>> groups;
  size_t bytes = 0;  // of the last group
  for (const auto& [instruction, gradient] : order) {
    if (groups.empty() || bytes >= group_bytes) groups.emplace_back(), bytes = 0;
    groups.back().push_back(gradient);
    if (impl_->result_of[gradient] < 0) continue;
    const Type& type = program.type(program.output_slots()[static_cast<size_t>(impl_->result_of[gradient])]);
    if (type.is_static()) bytes += size_bytes(type.dtype, type.static_shape().num_elements());
  }
  return groups;
}
bool JointModule::is_random() const { return impl_->is_random; }
void JointModule::set_monitor(Monitor monitor) { impl_->set_monitor(std::move(monitor)); }
MemoryStatistics JointModule::memory_statistics() const { return impl_->memory.account->statistics(); }
void JointModule::set_memory_limit(size_t limit_bytes) { impl_->set_memory_limit(limit_bytes); }
void JointModule::trim() { impl_->runner->trim(); }
std::vector<NodeCounter> JointModule::node_counters() const { return impl_->Runtime::node_counters(impl_->runner->executables()); }
void JointModule::reset_node_counters() const { impl_->Runtime::reset_node_counters(impl_->runner->executables()); }
std::string JointModule::end_profiling() { return impl_->end_profiling(impl_->runner->executables(), TraceFormat::chrome); }
void JointModule::start_profiling() { impl_->start_profiling({}); }
void JointModule::pause_profiling() { impl_->profiling().set(false); }
void JointModule::resume_profiling() { impl_->profiling().set(true); }
Profile JointModule::profile() const { return recorded_profile(impl_->profile_plan(impl_->profiling()), impl_->profiling()); }
Profiler JointModule::profiler(const ProfilerOptions& options) {
  auto plan = [impl = impl_.get()](const Profiling& of) { return impl->profile_plan(of); };
  return Profiler(std::make_unique<Profiler::Impl>(impl_, *impl_, options, std::move(plan)));
}

profile::ProfilePlan JointModule::Impl::profile_plan(const Profiling& of) const {
  profile::ProfilePlan plan = Runtime::profile_plan(runner->executables(), of);
  if (of.window().limits().memory)
    for (const NamedTensors* tensors : {&parameters, &states})
      for (const auto& [name, tensor] : *tensors) plan.held.push_back({name, MemoryClass::parameters, tensor.size_bytes()});
  if (of.names_passes())
    name_passes(plan.profile, [&] {
      std::shared_ptr<Graph> graph = make_joint(/*simplified=*/true).training.graph;
      optimise(*graph, Runtime::options);
      return graph;
    });
  return plan;
}
void JointModule::hold(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const Tensor before = impl_->held_now(name);
    if (tensor.dtype() != before.dtype() || tensor.shape() != before.shape())
      throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is {}, the module holds {}", name, describe(tensor), describe(before)));
    if (!tensor.is_contiguous())
      throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is not contiguous, and is read where it lies", name));
  }
  for (const auto& [name, tensor] : tensors) {
    if (const auto found = impl_->places_of_held.find(name); found != impl_->places_of_held.end()) {
      impl_->held->set(found->second, tensor);
      continue;
    }
    impl_->parameters.at(name) = tensor;
    impl_->runner->keep(name, tensor);
  }
}
std::vector<std::string> JointModule::held_names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : impl_->places_of_held) names.push_back(name);
  return names;
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
