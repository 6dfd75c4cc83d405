// The compiled graphs that the executors of one model share.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/nearest.h"
#include "passes/infer_storage.h"
#include "train/graph/training_graph.h"
#include "train/run/runner.h"
#include "treadle/error.h"
#include "treadle/executor.h"

namespace treadle::train {
namespace {

constexpr const char* kStorage = "treadle.storage";

bool is_tensor(const ValueInfo& info) { return info.type.starts_with("tensor("); }

}  // namespace

struct ExecutorGraphs::Impl {
  Impl(const Model& source, const std::optional<SessionOptions>& given, const std::vector<std::string>& by_rows,
       const std::function<std::shared_ptr<Session>()>& make_session)
      : model(source), options(given), row_gradients(by_rows) {
    find_trained();
    for (const std::string& name : row_gradients)
      if (!parameters.contains(name)) {
        std::vector<std::string> names;
        for (const auto& [parameter, tensor] : parameters) names.push_back(parameter);
        throw Error(ErrorCode::not_found,
                    fmt::format("a gradient by rows of \"{}\", which is no parameter; is it {}?", name, nearest_names(name, names)));
      }
    make_evaluation(make_session);
    inputs = session ? session->inputs() : model.inputs();
    for (const ValueInfo& info : model.outputs()) output_names.push_back(info.name);
  }

  // Finds the parameters and states that a JointModule would train. Finds none if the model has no trainable initializer, an output has no
  // gradient, or an operator has no gradient rule. JointModule reports this reason later, if a training pass is requested.
  void find_trained() {
    try {
      const Model own = with_own_initializers(model);
      const SessionOptions training_options = in_training({});
      TrainingGraph made = make_training_graph(own, {.session = &training_options}, /*training=*/true);
      const std::vector<ValueId> ys = made.graph->outputs;
      for (ValueId y : ys)
        if (made.graph->type(y).dtype != DType::float32) return;
      add_backward(made, own, ys, ys);  // here, `ys` also serve as output gradients, of which only the types matter
      parameters = copy_initializers(own, made.parameters);
      std::vector<std::string> names;
      for (const TrainingGraph::State& state : made.states) names.push_back(state.name);
      states = copy_initializers(own, names);
    } catch (const Error&) {
      parameters.clear(), states.clear();
    }
  }

  void make_evaluation(const std::function<std::shared_ptr<Session>()>& make_session) {
    const std::vector<ValueInfo> ins = model.inputs(), outs = model.outputs();
    const bool reads_in_place = !options && !(parameters.empty() && states.empty()) && std::all_of(ins.begin(), ins.end(), is_tensor) &&
                                std::all_of(outs.begin(), outs.end(), is_tensor);
    if (reads_in_place) {
      JointOptions made{.frozen = {"*"}, .forward_only = true, .inference = true, .held = parameters};
      made.held.insert(states.begin(), states.end());
      try {
        reader.emplace(model, made);
        return;
      } catch (const Error&) {  // ignored: an error of the model is reported when the session is made below
      }
    }
    session = make_session ? make_session() : std::make_shared<Session>(model, options.value_or(SessionOptions()));
  }

  // Returns the session options for a training module. Inputs that have a gradient lose their sparse storage types, as they must be dense.
  SessionOptions training_options(const std::vector<std::string>& differentiated) const {
    SessionOptions made = options.value_or(SessionOptions());
    // Each module gets its own prefix, so that it writes a separate profile file.
    made.profile_file_prefix += fmt::format("training{}_", training.size());
    const auto given = made.config.find(kStorage);
    if (given == made.config.end()) return made;
    std::vector<std::string> kept;
    for (const auto& [name, storage] : passes::parse_storage(given->second)) {
      const bool is_input = std::any_of(inputs.begin(), inputs.end(), [&](const ValueInfo& info) { return info.name == name; });
      if (is_input && std::find(differentiated.begin(), differentiated.end(), name) == differentiated.end())
        kept.push_back(fmt::format("{}={}", name, storage));
    }
    if (kept.empty())
      made.config.erase(given);
    else
      given->second = fmt::format("{}", fmt::join(kept, ";"));
    return made;
  }

  JointModule& make_training(const GradientRequests& requests) {
    if (const auto found = training.find(requests); found != training.end()) return found->second;
    JointOptions made;
    made.sparse_gradients = row_gradients;
    for (const ValueInfo& info : inputs)
      if (const auto found = requests.find(info.name); found != requests.end() && found->second != GradientRequest::null)
        made.inputs.push_back(info.name);
    for (const auto& [name, request] : requests) {
      const bool by_rows = std::find(row_gradients.begin(), row_gradients.end(), name) != row_gradients.end();
      // A gradient that has only some rows is a new tensor in every pass. Requests to write or add to existing memory do not apply to it.
      if (request == GradientRequest::null ? !parameters.contains(name) : by_rows) continue;
      made.gradient_requests.emplace(name, request);
    }
    made.session = training_options(made.inputs);
    JointModule& module = training.emplace(requests, JointModule(model, made)).first->second;
    order.push_back(&module);
    if (monitor) module.set_monitor(*monitor);
    return module;
  }

  Model model;
  std::optional<SessionOptions> options;
  std::vector<std::string> row_gradients, output_names;
  std::vector<ValueInfo> inputs;
  NamedTensors parameters, states;
  std::optional<JointModule> reader;  // evaluates the model on bound values in place; empty: `session` evaluates it
  const void* executor = nullptr;     // executor whose values were last passed to `reader`
  std::shared_ptr<Session> session;
  std::map<GradientRequests, JointModule> training;
  std::vector<JointModule*> order;  // the modules in order of creation
  std::optional<Monitor> monitor;
};

ExecutorGraphs::ExecutorGraphs(const Model& model, const std::optional<SessionOptions>& session,
                               const std::vector<std::string>& row_gradients, const std::function<std::shared_ptr<Session>()>& make_session)
    : impl_(std::make_shared<Impl>(model, session, row_gradients, make_session)) {}

const Model& ExecutorGraphs::model() const { return impl_->model; }
const std::optional<SessionOptions>& ExecutorGraphs::session_options() const { return impl_->options; }
std::vector<ValueInfo> ExecutorGraphs::inputs() const { return impl_->inputs; }
const std::vector<std::string>& ExecutorGraphs::output_names() const { return impl_->output_names; }
const NamedTensors& ExecutorGraphs::parameters() const { return impl_->parameters; }
const NamedTensors& ExecutorGraphs::states() const { return impl_->states; }
bool ExecutorGraphs::has_row_gradient(const std::string& parameter) const {
  return std::find(impl_->row_gradients.begin(), impl_->row_gradients.end(), parameter) != impl_->row_gradients.end();
}
JointModule& ExecutorGraphs::training(const GradientRequests& requests) const { return impl_->make_training(requests); }
std::vector<JointModule*> ExecutorGraphs::all_training() const { return impl_->order; }
JointModule* ExecutorGraphs::evaluation() const { return impl_->reader ? &*impl_->reader : nullptr; }
Session* ExecutorGraphs::session() const { return impl_->session.get(); }

ExecutorGraphs ExecutorGraphs::for_model(const Model& other) const {
  if (&other.impl() == &model().impl()) return *this;
  return ExecutorGraphs(other, impl_->options, impl_->row_gradients);
}

const void*& ExecutorGraphs::reader() const { return impl_->executor; }

// Does not report parameters and states as inputs to the monitor, because only some kinds of passes feed them.
void ExecutorGraphs::set_monitor(const Monitor& given) const {
  Monitor monitor = given;
  if (given.callback)
    monitor.callback = [impl = impl_.get(), callback = given.callback](const MonitorEvent& event) {
      const std::string name(event.value);
      if (!event.node.empty() || !(impl->parameters.contains(name) || impl->states.contains(name))) callback(event);
    };
  impl_->monitor = monitor.callback ? std::optional(monitor) : std::nullopt;
  if (impl_->session) impl_->session->set_monitor(monitor);
  if (impl_->reader) impl_->reader->set_monitor(monitor);
  for (JointModule* module : impl_->order) module->set_monitor(monitor);
}

std::vector<std::string> ExecutorGraphs::end_profiling() const {
  if (!impl_->options || !impl_->options->enable_profiling) return {};
  std::vector<std::string> paths{impl_->session->end_profiling()};
  for (JointModule* module : impl_->order) paths.push_back(module->end_profiling());
  return paths;
}

size_t ExecutorGraphs::memory_bytes() const {
  if (impl_->reader) return impl_->reader->memory_statistics().total.bytes;
  const MemoryReport report = impl_->session->memory();
  return report.weight_bytes + report.packed_bytes + report.arena_bytes;
}

std::string ExecutorGraphs::optimized_model() const {
  if (impl_->session) return impl_->session->optimized_model();
  return Session(impl_->model).optimized_model();
}

}  // namespace treadle::train
