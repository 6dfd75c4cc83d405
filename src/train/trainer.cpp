// Trainer: the joint graph of forward, backward and update, and three smaller ones beside it.
#include <fmt/format.h>

#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>

#include "core/allocation.h"
#include "exec/frame.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "train/runner.h"
#include "train/training_graph.h"
#include "treadle/error.h"
#include "treadle/train.h"

namespace treadle::train {
namespace {

constexpr std::string_view kAllParameters = "treadle.parameters";

std::string momentum_name(const std::string& parameter) { return parameter + "/momentum"; }

}  // namespace

struct Trainer::Impl : Runtime {
  Impl(const Model& source, const TrainerOptions& trainer_options)
      : Runtime(in_training(trainer_options.session), "the trainer"), model(with_own_statistics(source)), options(trainer_options) {
    AllocationScope scope(&memory, MemoryClass::weights);
    // Elsewhere outputs arrive while later nodes may still fail: they are copied when all have run.
    in_place = !devices.any() && !parallel;
    for (const ValueInfo& info : model.outputs()) output_names.push_back(info.name);
    rate = Tensor::scalar(static_cast<float>(options.learning_rate));
    if (devices.any()) devices.read_groups(*model.impl().import());
    make_step();
    keep_limits([this] { trim(); });
  }

  ~Impl() {
    let_limits_go();
    in_flight->close(-1);
    for (std::optional<Runner>* runner : {&step, &gradients, &inference, &loss}) runner->reset();
    for (NamedTensors* tensors : {&parameters, &states, &momentum}) tensors->clear();
    bound.clear();
  }

  static SessionOptions in_training(const SessionOptions& given) {
    check_session_options(given);
    SessionOptions session = given;
    session.mode = SessionMode::training;
    return session;
  }

  // Arenas that no run uses.
  void trim() const {
    std::lock_guard lock(runners_mutex);
    for (const std::optional<Runner>* runner : {&step, &gradients, &inference, &loss})
      if (*runner) (*runner)->program().frames().trim();
  }

  Selection selection() const { return {options.parameters, options.frozen}; }

  TrainingGraph with_loss(bool training, const Selection& chosen, ValueId& loss) const {
    TrainingGraph made = make_training_graph(model, chosen, training);
    loss = add_loss(*made.graph, find_output(*made.graph, options.output), options.loss, options.int32_labels);
    return made;
  }

  /// Momentum of ai.onnx.preview.training with T = 1 and beta = 1 is PyTorch's SGD.
  std::pair<ValueId, ValueId> add_update(Graph& graph, const std::string& name, ValueId gradient, ValueId learning_rate, ValueId one) {
    const ValueId parameter = graph.find_value(name);
    const ValueId velocity = graph.add_input(momentum_name(name), graph.type(parameter));
    const NodeId id = graph.add_node({.op_type = "Momentum",
                                      .inputs = {learning_rate, one, parameter, gradient, velocity},
                                      .attributes = {{"alpha", static_cast<float>(options.momentum)},
                                                     {"beta", 1.0F},
                                                     {"mode", std::string(options.nesterov ? "nesterov" : "standard")},
                                                     {"norm_coefficient", static_cast<float>(options.weight_decay)}},
                                      .domain = "ai.onnx.preview.training",
                                      .name = name + "/update",
                                      .num_outputs = 2});
    infer_node(graph, id);
    return {graph.node(id).outputs[0], graph.node(id).outputs[1]};
  }

  void make_step() {
    ValueId loss;
    TrainingGraph made = with_loss(true, selection(), loss);
    const std::vector<ValueId> grads = add_backward(made, model, std::vector{loss}, {});
    Graph& graph = *made.graph;
    const ValueId learning_rate = graph.add_input(kLearningRate, Type::tensor(DType::float32, SymbolicShape{}));
    const ValueId one = graph.add_constant("one", Tensor::scalar<int64_t>(1));
    parameters = copy_initializers(model, made.parameters);
    for (const auto& [name, tensor] : parameters) momentum.emplace(name, zeros(tensor.shape()));
    NamedTensors kept = parameters;  // by the names of inputs and outputs
    for (const auto& [name, tensor] : momentum) kept.emplace(momentum_name(name), tensor);
    std::vector<std::pair<std::string, ValueId>> outputs{{"loss", loss}};
    std::vector<std::string> states;
    for (const TrainingGraph::State& state : made.states) {
      outputs.emplace_back(state.name, state.updated);
      states.push_back(state.name);
    }
    auto update = [&](const std::string& name, ValueId gradient) {
      auto [parameter, velocity] = add_update(graph, name, gradient, learning_rate, one);
      outputs.emplace_back(name, parameter);
      outputs.emplace_back(momentum_name(name), velocity);
    };
    if (options.fused_update && !made.parameters.empty()) {
      kept = lay_side_by_side(made.parameters);
      update(std::string(kAllParameters), join(graph, made.parameters, grads));
    } else {
      for (size_t i = 0; i < made.parameters.size(); ++i) update(made.parameters[i], grads[i]);
    }
    trained = made.parameters;
    this->states = copy_initializers(model, states);
    train::finish(graph, outputs, true, Runtime::options);
    // An update writes over the parameter, so whoever reads that must have run before: updates go last.
    for (size_t k = 0; k < graph.outputs.size(); ++k) {
      const Value& value = graph.value(graph.outputs[k]);
      if (value.kind == Value::Kind::computed && graph.node(value.producer).is("Momentum", "ai.onnx.preview.training"))
        graph.move_before(value.producer, kNoNode);
    }
    for (const auto& [name, id] : outputs) {
      auto found = kept.find(name);
      const bool is_kept = found != kept.end();
      bound.emplace_back(is_kept && in_place ? Datum(found->second) : Datum());
      auto state = this->states.find(name);
      updated.emplace_back(is_kept && !in_place ? found->second : state != this->states.end() ? state->second : Tensor());
    }
    step.emplace(*this, std::move(made.graph), std::vector<const NamedTensors*>{&kept, &this->states});
  }

  static Tensor zeros(const Shape& shape) {
    Tensor made(DType::float32, shape);
    std::fill_n(made.data<float>(), made.num_elements(), 0.0F);
    return made;
  }

  /// Moves parameters and momentum into one tensor each, of which those by name are views. @return the two, by the names of their inputs.
  NamedTensors lay_side_by_side(const std::vector<std::string>& names) {
    int64_t total = 0;
    for (const std::string& name : names) total += parameters.at(name).num_elements();
    Tensor all(DType::float32, Shape{total}), velocity = zeros(Shape{total});
    size_t offset = 0;
    for (const std::string& name : names) {
      Tensor& parameter = parameters.at(name);
      const Tensor view(DType::float32, parameter.shape(), all.storage(), offset);
      if (parameter.num_elements() > 0) std::memcpy(view.raw(), parameter.raw(), parameter.size_bytes());
      parameter = view;
      momentum.at(name) = Tensor(DType::float32, view.shape(), velocity.storage(), offset);
      offset += view.size_bytes();
    }
    return {{std::string(kAllParameters), all}, {momentum_name(std::string(kAllParameters)), velocity}};
  }

  /// One input in place of all parameters, which are pieces of it; their gradients are joined. Neither costs a copy: the executor has
  /// pieces lie where they belong. @return the gradient of all.
  static ValueId join(Graph& graph, const std::vector<std::string>& names, std::span<const ValueId> grads) {
    std::vector<int64_t> sizes;
    for (const std::string& name : names) sizes.push_back(graph.type(graph.find_value(name)).static_shape().num_elements());
    const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    const ValueId all = graph.add_input(std::string(kAllParameters), Type::tensor(DType::float32, SymbolicShape{Dim(total)}));
    const NodeId first = graph.first();
    auto add = [&](NodeSpec spec, NodeId before) {
      const NodeId id = graph.add_node(std::move(spec));
      infer_node(graph, id);
      if (before != kNoNode) graph.move_before(id, before);
      return id;
    };
    auto ints = [&](const std::string& name, const std::vector<int64_t>& values) {
      return graph.add_constant(graph.unique_name(name), Tensor::vector<int64_t>(values));
    };
    const NodeId split = add({.op_type = "Split",
                              .inputs = {all, ints("sizes", sizes)},
                              .attributes = {{"axis", int64_t{0}}},
                              .name = "parameters/split",
                              .num_outputs = static_cast<int>(names.size())},
                             first);
    const ValueId flat = ints("flat", {-1});
    std::vector<ValueId> flattened;
    for (size_t i = 0; i < names.size(); ++i) {
      const ValueId parameter = graph.find_value(names[i]);
      const Shape shape = graph.type(parameter).static_shape();
      const NodeId shaped = add({.op_type = "Reshape",
                                 .inputs = {graph.node(split).outputs[i], ints("shape", {shape.dims().begin(), shape.dims().end()})},
                                 .name = names[i] + "/shaped"},
                                first);
      graph.replace_uses(parameter, graph.node(shaped).outputs[0]);
      std::erase(graph.inputs, parameter);
      const NodeId line = add({.op_type = "Reshape", .inputs = {grads[i], flat}, .name = names[i] + "/gradient"}, kNoNode);
      flattened.push_back(graph.node(line).outputs[0]);
    }
    const NodeId joined =
        add({.op_type = "Concat", .inputs = flattened, .attributes = {{"axis", int64_t{0}}}, .name = "gradients/joined"}, kNoNode);
    return graph.node(joined).outputs[0];
  }

  Runner& make_gradients() {
    if (!gradients) {
      AllocationScope scope(&memory, MemoryClass::weights);
      ValueId loss;
      TrainingGraph made = with_loss(true, {trained, {}}, loss);
      const std::vector<ValueId> grads = add_backward(made, model, std::vector{loss}, {});
      std::vector<std::pair<std::string, ValueId>> outputs;
      for (size_t i = 0; i < grads.size(); ++i) outputs.emplace_back(made.parameters[i], grads[i]);
      train::finish(*made.graph, outputs, true, Runtime::options);
      std::lock_guard lock(runners_mutex);
      gradients.emplace(*this, std::move(made.graph), std::vector<const NamedTensors*>{&parameters, &states});
    }
    return *gradients;
  }

  Runner& make_inference(std::optional<Runner>& runner, bool only_loss) {
    if (!runner) {
      AllocationScope scope(&memory, MemoryClass::weights);
      TrainingGraph made;
      std::vector<std::pair<std::string, ValueId>> outputs;
      if (only_loss) {
        ValueId loss;
        made = with_loss(false, {trained, {}}, loss);
        outputs.emplace_back("loss", loss);
      } else {
        made = make_training_graph(model, {trained, {}}, false);
        for (size_t i = 0; i < output_names.size(); ++i) outputs.emplace_back(output_names[i], made.graph->outputs[i]);
      }
      train::finish(*made.graph, outputs, false, Runtime::options);
      std::lock_guard lock(runners_mutex);
      runner.emplace(*this, std::move(made.graph), std::vector<const NamedTensors*>{&parameters, &states});
    }
    return *runner;
  }

  std::vector<Datum> run(const Runner& runner, const Feeds& feeds, const Datum& labels, const RunOptions* run_options,
                         std::span<const Datum> bound_outputs = {}) {
    check_run_options(run_options);
    const std::vector<Datum> arranged = runner.arrange(feeds, labels, rate);
    std::vector<Datum> outputs(runner.graph().outputs.size());
    execute(runner.executable(), arranged, outputs, {.bound = bound_outputs, .options = run_options, .random_id = num_steps});
    return outputs;
  }

  Model model;
  TrainerOptions options;
  bool in_place = true;
  mutable std::mutex runners_mutex;  // against trim(), which the job's other threads call
  std::vector<std::string> output_names, trained;
  NamedTensors parameters, states, momentum;
  std::vector<Datum> bound;     // per output of the step: the memory it is written to
  std::vector<Tensor> updated;  // the same, written when all else has been done: states are computed in the forward pass
  Tensor rate;
  uint64_t num_steps = 0;
  std::optional<Runner> step, gradients, inference, loss;
};

Trainer::Trainer(const Model& model, const TrainerOptions& options) : impl_(std::make_unique<Impl>(model, options)) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

double Trainer::step(const Feeds& feeds, const Tensor& labels, const RunOptions* options) {
  const std::vector<Datum> outputs = impl_->run(*impl_->step, feeds, labels, options, impl_->bound);
  for (size_t k = 0; k < outputs.size(); ++k)
    if (impl_->updated[k].defined()) impl_->updated[k].copy_from(outputs[k].tensor());
  ++impl_->num_steps;
  return static_cast<double>(*outputs[0].tensor().data<float>());
}

double Trainer::evaluate(const Feeds& feeds, const Tensor& labels, const RunOptions* options) {
  const std::vector<Datum> outputs = impl_->run(impl_->make_inference(impl_->loss, true), feeds, labels, options);
  return static_cast<double>(*outputs[0].tensor().data<float>());
}

std::vector<Datum> Trainer::predict(const Feeds& feeds, const RunOptions* options) {
  return impl_->run(impl_->make_inference(impl_->inference, false), feeds, {}, options);
}

NamedTensors Trainer::gradients(const Feeds& feeds, const Tensor& labels, const RunOptions* options) {
  const Runner& runner = impl_->make_gradients();
  const std::vector<Datum> outputs = impl_->run(runner, feeds, labels, options);
  NamedTensors named;
  for (size_t i = 0; i < outputs.size(); ++i) named.emplace(runner.graph().output_names[i], outputs[i].tensor());
  return named;
}

const NamedTensors& Trainer::parameters() const { return impl_->parameters; }
const NamedTensors& Trainer::states() const { return impl_->states; }
const NamedTensors& Trainer::momentum() const { return impl_->momentum; }
const std::vector<std::string>& Trainer::output_names() const { return impl_->output_names; }
double Trainer::learning_rate() const { return impl_->options.learning_rate; }
void Trainer::set_learning_rate(double rate) {
  impl_->options.learning_rate = rate;
  *impl_->rate.data<float>() = static_cast<float>(rate);
}

MemoryStatistics Trainer::memory_statistics() const { return impl_->memory.account->statistics(); }
void Trainer::set_memory_limit(size_t limit_bytes) { impl_->set_memory_limit(limit_bytes); }
std::string Trainer::end_profiling() { return impl_->end_profiling(); }

void Trainer::save(const std::string& path, const Metadata& metadata) const {
  save_with(impl_->model, std::vector<const NamedTensors*>{&impl_->parameters, &impl_->states}, metadata, path);
}
std::string Trainer::to_bytes(const Metadata& metadata) const {
  return encode_with(impl_->model, std::vector<const NamedTensors*>{&impl_->parameters, &impl_->states}, metadata);
}
std::string Trainer::to_text() const { return print(impl_->step->graph()); }

}  // namespace treadle::train
