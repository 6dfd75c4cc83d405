// JointModule: one graph of the forward and the backward pass. Between them, the node Yield returns outputs and takes their gradients.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/nearest.h"
#include "core/values/allocation.h"
#include "core/values/writable.h"
#include "exec/explain/profile_plan.h"
#include "exec/run/frame.h"
#include "exec/run/trace_marks.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "session/model.h"
#include "train/graph/row_gradients.h"
#include "train/joint/joint_graph.h"
#include "train/joint/joint_module_impl.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

constexpr std::pair<std::string_view, GradientRequest> kRequests[] = {
    {"null", GradientRequest::null}, {"write", GradientRequest::write}, {"add", GradientRequest::add}};

// Returns the name of the graph input whose memory accumulates the gradient.
std::string sum_name(const std::string& gradient) { return "treadle.sum/" + gradient; }

}  // namespace

GradientRequest gradient_request_named(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [each, request] : kRequests) {
    if (each == name) return request;
    names.emplace_back(each);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no gradient request \"{}\"; there are {}", name, fmt::join(names, ", ")));
}

std::string_view name_of(GradientRequest request) {
  return std::find_if(std::begin(kRequests), std::end(kRequests), [&](const auto& each) { return each.second == request; })->first;
}

JointModule::Impl::Impl(const Model& source, const JointOptions& given)
    : Runtime(in_training(given.session), "the module"),
      model(with_own_initializers(source)),
      joint_options(given),
      forward_only(given.forward_only) {
  const Making scope(*this, source);
  making(name, [&] { make(given); });
  enlist(model, [this] { runner->trim(); });
}

void JointModule::Impl::make(const JointOptions& given) {
  if ((given.inference || !given.held.empty()) && !forward_only)
    throw Error(ErrorCode::invalid_argument, "inference and held values are for modules without a backward pass");
  if (forward_only && !given.gradient_requests.empty())
    throw Error(ErrorCode::invalid_argument, "a module without a backward pass has no gradients to be requested");
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
  // Records which parameters have a gradient, so that a graph that is later rebuilt for a monitor has the same gradients.
  if (!forward_only && !made.parameters.empty()) joint_options.parameters = made.parameters;
  held->watch(true);
  auto again = [this] { return make_joint(/*simplified=*/false).training.graph; };
  RunnerOptions of_runner{.nodes = std::move(made.nodes), .check_unread = [this](const std::string& fed) { check_unread(fed); }};
  if (!forward_only) of_runner.forward.emplace();
  runner = std::make_unique<Runner>(*this, std::move(made.graph), again, std::vector<const NamedTensors*>{&parameters, &states}, held,
                                    std::move(of_runner));
  is_random = draws_numbers(runner->graph());
  copied = read_behind_yield(runner->graph());
  find_states();
}

JointModule::Impl::~Impl() {
  delist();
  leave_profile(runner->executables(), TraceFormat::chrome);
}

JointModule::Impl::Joint JointModule::Impl::make_joint(bool simplified) const {
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

// Returns the values that the module returns: `outputs`, followed by `plain_outputs`.
std::vector<ValueId> JointModule::Impl::find_outputs(Joint& joint) const {
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

// Adds the Yield node, the backward pass after it, and the requested gradients as outputs of the graph.
void JointModule::Impl::add_gradients(Joint& joint, std::vector<ValueId> ys, bool simplified) const {
  Graph& graph = *joint.training.graph;
  if (simplified) simplify_forward(joint.training, ys, Runtime::options);
  std::vector<ValueId> xs;
  for (const std::string& name : joint_options.inputs) {
    const ValueId id = graph.find_value(name);
    if (id == kNoValue || std::find(graph.inputs.begin(), graph.inputs.end(), id) == graph.inputs.end())
      throw Error(ErrorCode::not_found, fmt::format("the model has no input \"{}\"", name));
    xs.push_back(id);
  }
  check_requests(joint.training);
  const NodeId yield = graph.add_node(
      {.op_type = "Yield", .inputs = ys, .domain = "treadle", .name = "yield", .num_outputs = static_cast<int>(joint.num_differentiable)});
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
    const GradientRequest request = request_of(name);
    if (request == GradientRequest::null) all[i] = {};
    if (request == GradientRequest::add && all[i].has_rows())
      throw Error(ErrorCode::invalid_argument, fmt::format("the gradient of \"{}\" is by rows: it is not added to memory", name));
    if (request == GradientRequest::add && all[i].value != kNoValue) {
      const ValueId sum = graph.add_input(sum_name(name), graph.type(graph.find_value(name)));
      all[i].value = appended(graph, {.op_type = "Add", .inputs = {sum, all[i].value}, .name = name + "/gradient/sum"});
    }
    joint.result_of.push_back(all[i].value == kNoValue ? -1 : static_cast<int>(joint.outputs.size()));
    if (all[i].value != kNoValue) joint.outputs.emplace_back(name, all[i].value);
    joint.rows_of.push_back(all[i].has_rows() ? static_cast<int>(joint.outputs.size()) : -1);
    if (all[i].has_rows()) joint.outputs.emplace_back(name + "/rows", all[i].places);
  }
}

GradientRequest JointModule::Impl::request_of(const std::string& name) const {
  const auto found = joint_options.gradient_requests.find(name);
  return found == joint_options.gradient_requests.end() ? GradientRequest::write : found->second;
}

void JointModule::Impl::check_requests(const TrainingGraph& training) const {
  std::vector<std::string> names = training.parameters;
  names.insert(names.end(), joint_options.inputs.begin(), joint_options.inputs.end());
  for (const auto& [name, request] : joint_options.gradient_requests)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw Error(ErrorCode::not_found,
                  fmt::format("a gradient of \"{}\" is requested, which is no parameter, and not among the inputs; is it {}?", name,
                              nearest_names(name, names)));
}

void JointModule::Impl::bind_gradients(const NamedTensors& given, Feeds& feeds, std::vector<Datum>& to) const {
  for (const auto& [name, tensor] : given)
    if (std::find(gradient_names.begin(), gradient_names.end(), name) == gradient_names.end())
      throw Error(ErrorCode::not_found, fmt::format("memory is given for the gradient of \"{}\", which there is not", name));
  for (size_t g = 0; g < gradient_names.size(); ++g) {
    if (result_of[g] < 0 || rows_of[g] >= 0) continue;
    const std::string& name = gradient_names[g];
    const auto found = given.find(name);
    if (found == given.end()) throw Error(ErrorCode::invalid_argument, fmt::format("the gradient of \"{}\" has no memory", name));
    const Tensor& own = found->second;
    const auto parameter = parameters.find(name);
    const auto feed = feeds.find(name);
    const Tensor& of = parameter != parameters.end()                     ? parameter->second
                       : feed != feeds.end() && feed->second.is_tensor() ? feed->second.tensor()
                                                                         : own;
    if (own.dtype() != of.dtype() || own.shape() != of.shape() || !own.is_contiguous())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the memory for the gradient of \"{}\" is {}; contiguous memory of {} is expected", name, describe(own),
                              describe(of)));
    expect_writable(own, fmt::format("the gradient of \"{}\"", name));
    to[static_cast<size_t>(result_of[g])] = own;
    if (request_of(name) == GradientRequest::add) feeds.insert_or_assign(sum_name(name), own);
  }
}

// Allocates the running statistics that the caller does not feed. They are the graph's last outputs.
void JointModule::Impl::keep_states(const TrainingGraph& made) {
  const std::vector<std::string>& fed = joint_options.states;
  std::vector<std::string> own;
  for (const TrainingGraph::State& state : made.states)
    if (std::find(fed.begin(), fed.end(), state.name) == fed.end()) own.push_back(state.name);
  states = copy_initializers(model, own);
}

void JointModule::Impl::find_states() {
  const std::vector<std::string>& inputs = runner->executable()->input_names;
  for (size_t result = num_results; result < runner->graph().output_names.size(); ++result) {
    const std::string& name = runner->graph().output_names[result];
    kept_states.push_back({position_of(inputs, name), result, !states.contains(name)});
  }
  late = find_late(*runner->executable());
}

std::vector<bool> JointModule::Impl::find_late(const Executable& executable) const {
  const exec::Program& program = *executable.program;
  const auto instructions = program.instructions();
  const auto is_yield = [](const exec::Instruction& instruction) { return instruction.is_yield; };
  const auto yield = std::find_if(instructions.begin(), instructions.end(), is_yield);
  const auto root_of = [&](exec::SlotId slot) { return slot == exec::kNoSlot ? exec::kNoSlot : program.slots()[slot].root; };
  std::set<exec::SlotId> read_behind;
  for (auto at = yield; at != instructions.end(); ++at)
    for (exec::SlotId slot : program.operands(*at).first(at->num_inputs)) read_behind.insert(root_of(slot));
  std::vector<bool> found;
  for (const KeptState& state : kept_states) {
    const int result = static_cast<int>(state.result);
    found.push_back(made_by(program, std::span(&result, 1)) >
                        id_at<exec::InstructionId>(static_cast<size_t>(yield - instructions.begin())) ||
                    read_behind.contains(root_of(program.input_slots()[state.feed])));
  }
  return found;
}

std::vector<StateUpdate> JointModule::Impl::updates(const Executable& executable, std::span<const Datum> inputs) const {
  const std::vector<bool> are_late = &executable == runner->executable().get() ? late : find_late(executable);
  std::vector<StateUpdate> made;
  for (size_t k = 0; k < kept_states.size(); ++k)
    made.push_back({kept_states[k].result, inputs[kept_states[k].feed].tensor(), are_late[k]});
  return made;
}

/// Returns the tensor that the module currently uses for this name: the caller's tensor, a parameter or a state.
/// @throws Error(not_found)
Tensor JointModule::Impl::held_now(const std::string& name) const {
  if (const auto found = places_of_held.find(name); found != places_of_held.end()) return held->at(found->second).tensor;
  for (const NamedTensors* tensors : {&parameters, &states})
    if (const auto found = tensors->find(name); found != tensors->end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [held_name, place] : places_of_held) names.push_back(held_name);
  for (const NamedTensors* tensors : {&parameters, &states})
    for (const auto& [own, tensor] : *tensors) names.push_back(own);
  throw Error(ErrorCode::not_found, fmt::format("the module holds no \"{}\"; is it {}?", name, nearest_names(name, names)));
}

void JointModule::Impl::check_unread(const std::string& fed) const {
  const std::vector<ValueInfo> inputs = model.inputs();
  if (!places_of_held.contains(fed) && std::ranges::find(inputs, fed, &ValueInfo::name) != inputs.end()) return;
  refuse_feed(model, fed, runner->fed_names());
}

std::unique_ptr<JointModule::Run::Impl> JointModule::Impl::begin_run(const std::shared_ptr<Impl>& self, std::vector<Datum> inputs,
                                                                     std::span<const Datum> bound, const Feeding& feeding) {
  check_run_options(feeding.options);
  const std::shared_ptr<const Monitor> monitor = self->current_monitor();
  auto made = std::make_unique<Run::Impl>();
  made->module = self;
  made->run = std::make_shared<StoppableRun>(self, self->runner->executable(monitor), feeding.options, monitor, "joint module");
  if (feeding.draw) made->run->draw_by(*feeding.draw);
  if (feeding.update_states) made->updates = self->updates(made->run->executable(), inputs);
  made->run->start(std::move(inputs), bound, nullptr, /*compiled=*/false);
  return made;
}

void JointModule::Impl::refuse_fed_states() const {
  if (std::ranges::any_of(kept_states, &KeptState::is_fed))
    throw Error(ErrorCode::invalid_argument, "running statistics are fed: call forward_in_order(), which says where they lie");
}

JointModule::JointModule(const Model& model, const JointOptions& options) : impl_(std::make_shared<Impl>(model, options)) {}
JointModule::~JointModule() = default;
JointModule::JointModule(JointModule&&) noexcept = default;
JointModule& JointModule::operator=(JointModule&&) noexcept = default;

JointModule::Run JointModule::begin(const Feeds& feeds, const RunOptions* options) {
  for (const auto& [name, request] : impl_->joint_options.gradient_requests)
    if (request == GradientRequest::add)
      throw Error(ErrorCode::invalid_argument, fmt::format("the gradient of \"{}\" is added to memory: call begin_with_memory()", name));
  impl_->refuse_fed_states();
  return Run(Impl::begin_run(impl_, impl_->runner->arrange(feeds, {}), {}, {.options = options}));
}

JointModule::Run JointModule::begin_with_memory(const Feeds& feeds, const NamedTensors& gradients, const RunOptions* options) {
  impl_->refuse_fed_states();
  if (impl_->forward_only) throw Error(ErrorCode::invalid_argument, "the module was made without a backward pass");
  Feeds all = feeds;
  std::vector<Datum> bound(impl_->num_results);
  impl_->bind_gradients(gradients, all, bound);
  auto run = Impl::begin_run(impl_, impl_->runner->arrange(all, {}), bound, {.options = options});
  run->has_memory = true;
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
  feeds = impl_->runner->arrange_in_order(std::move(feeds));
  std::vector<const Storage*> callers;
  if (!impl_->forward_only)
    for (const Datum& feed : feeds) callers.push_back(storage_of(feed));
  auto run = Impl::begin_run(impl_, std::move(feeds), {}, feeding);
  run->callers = std::move(callers);
  Run forward(std::move(run));
  forward.advance_steps(SIZE_MAX);
  return forward;
}

const std::vector<std::string>& JointModule::input_names() const { return impl_->runner->fed_names(); }
const std::vector<std::string>& JointModule::gradient_names() const { return impl_->gradient_names; }
std::vector<std::vector<size_t>> JointModule::gradient_groups(size_t group_bytes) const {
  const exec::Program& program = impl_->runner->program();
  std::vector<std::pair<exec::InstructionId, size_t>> order;  // the instruction that completes a gradient, and the gradient's index
  for (size_t g = 0; g < impl_->result_of.size(); ++g)
    order.emplace_back(impl_->result_of[g] < 0 ? exec::kNoInstruction : made_by(program, std::span(&impl_->result_of[g], 1)), g);
  std::sort(order.begin(), order.end());
  std::vector<std::vector<size_t>> groups;
  size_t bytes = 0;  // size of the gradients in the last group
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
std::vector<UnfinishedRun> JointModule::close(int64_t timeout_ms) { return impl_->in_flight->close(timeout_ms); }
bool JointModule::closed() const { return impl_->in_flight->closed(); }
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

CacheStatistics JointModule::Impl::cache_statistics() const {
  CacheStatistics statistics;
  add_bindings(runner->executables(), statistics);
  return statistics;
}

profile::ProfilePlan JointModule::Impl::profile_plan(const Profiling& of) const {
  profile::ProfilePlan plan = Runtime::profile_plan(runner->executables(), of);
  if (of.window().limits().memory)
    for (const NamedTensors* tensors : {&parameters, &states})
      for (const auto& [name, tensor] : *tensors) plan.held.push_back({name, MemoryClass::parameters, tensor.size_bytes()});
  if (of.names_passes())
    name_passes(plan.profile, [&] {
      std::shared_ptr<Graph> graph = make_joint(/*simplified=*/true).training.graph;
      optimize(*graph, Runtime::options, &devices);
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
    if (!impl_->forward_only && impl_->states.contains(name)) expect_writable(tensor, fmt::format("the state \"{}\"", name));
  }
  for (const auto& [name, tensor] : tensors) {
    if (const auto found = impl_->places_of_held.find(name); found != impl_->places_of_held.end()) {
      impl_->held->set(found->second, tensor);
      continue;
    }
    (impl_->states.contains(name) ? impl_->states : impl_->parameters).at(name) = tensor;
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
