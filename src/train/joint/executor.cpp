// Executors run forward and backward passes of a model on tensors that are bound to its inputs and parameters by name.
#include "treadle/executor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/nearest.h"
#include "core/values/writable.h"
#include "train/joint/executor_impl.h"
#include "train/joint/sparse_values.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

bool is_sparse(const Datum& value) { return value.kind() == Datum::Kind::sparse_tensor; }

Datum ones_like(const Tensor& output) {
  Tensor ones(output.dtype(), output.shape());
  std::fill_n(ones.data<float>(), ones.num_elements(), 1.0F);
  return ones;
}

}  // namespace

Feeds Executor::Impl::evaluation_feeds() const {
  Feeds feeds = arguments;
  for (const auto& [name, state] : states) feeds.emplace(name, state);
  return feeds;
}

// Makes the module read the bound values in place. They are handed to the module again only if another executor has used it since then, or
// if a value has been bound since then.
Feeds Executor::Impl::hold_for_evaluation(JointModule& module) {
  Feeds fed;
  for (const std::string& name : module.input_names()) fed.emplace(name, arguments.at(name));
  if (graphs.reader() == this && !is_bound_anew) return fed;
  NamedTensors held;
  for (const std::string& name : module.held_names()) {
    const auto argument = arguments.find(name);
    held.emplace(name, argument != arguments.end() ? argument->second.tensor() : states.at(name));
  }
  module.hold(held);
  graphs.reader() = this;
  is_bound_anew = false;
  return fed;
}

void Executor::Impl::take_outputs(std::vector<Datum> made) {
  std::set<const Storage*> bound;
  auto add = [&](const Datum& value) {
    if (value.is_tensor()) bound.insert(value.tensor().storage().get());
  };
  for (const auto& [name, value] : arguments) add(value);
  for (const auto& [name, value] : states) add(value);
  for (Datum& output : made)
    if (output.is_tensor() && bound.contains(output.tensor().storage().get())) output = output.tensor().clone();
  outputs = std::move(made);
}

JointModule::Run Executor::Impl::begin_training(const RunOptions* options) {
  JointModule& module = graphs.training(requests);
  NamedTensors held = states, memory;
  std::erase_if(held, [&](const auto& state) { return !module.states().contains(state.first); });
  Feeds feeds;
  const auto& session = graphs.session_options();
  for (const auto& [name, value] : arguments) {
    const bool is_parameter = graphs.parameters().contains(name);
    Datum fed = value;
    if (is_sparse(value) && (is_parameter || requests.at(name) != GradientRequest::null)) {
      if (session && session->on_warning)
        session->on_warning(fmt::format("\"{}\" is sparse, and is made dense for training, as it has a gradient", name));
      fed = to_dense(value.sparse_tensor());
    }
    if (is_parameter)
      held.emplace(name, fed.tensor());
    else
      feeds.emplace(name, std::move(fed));
  }
  for (const auto& [name, gradient] : gradients)
    if (gradient.is_tensor()) memory.emplace(name, gradient.tensor());
  module.hold(held);
  return module.begin_with_memory(feeds, memory, options);
}

void Executor::Impl::end_training(JointModule::Run made) {
  take_outputs({made.outputs().begin(), made.outputs().end()});
  run.emplace(std::move(made));
}

const std::vector<Datum>& Executor::forward(ForwardMode mode, const RunOptions* options) {
  Impl& e = *impl_;
  e.run.reset(), e.stepping = {};
  if (mode == ForwardMode::train) {
    JointModule::Run run = e.begin_training(options);
    run.advance_steps(SIZE_MAX);
    e.end_training(std::move(run));
  } else if (JointModule* const module = e.graphs.evaluation()) {
    const JointModule::Run run = module->forward(e.hold_for_evaluation(*module), options);
    e.take_outputs({run.outputs().begin(), run.outputs().end()});
  } else {
    e.take_outputs(e.graphs.session()->run(e.evaluation_feeds(), {}, options));
  }
  return e.outputs;
}

size_t Executor::Impl::Stepping::steps_left() const { return run ? run->steps_left() : session_run ? session_run->steps_left() : 0; }

void Executor::Impl::begin_steps(ForwardMode mode, const RunOptions* options) {
  run.reset(), stepping = {};
  stepping.mode = mode;
  if (mode == ForwardMode::train) {
    stepping.run.emplace(begin_training(options));
  } else if (JointModule* const module = graphs.evaluation()) {
    stepping.run.emplace(module->begin(hold_for_evaluation(*module), options));
  } else {
    stepping.session_run.emplace(graphs.session()->partial_run(evaluation_feeds(), nullptr, options));
  }
  stepping.num_steps = stepping.steps_left();
  stepping.is_under_way = true;
}

size_t Executor::partial_forward(size_t step, ForwardMode mode, const RunOptions* options) {
  Impl& e = *impl_;
  if (step == 0) e.begin_steps(mode, options);
  Impl::Stepping& steps = e.stepping;
  if (!steps.is_under_way && step >= steps.num_steps && steps.num_steps > 0) return 0;
  if (!steps.is_under_way || step != steps.next)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("step {} does not follow; the next one is {}", step, steps.is_under_way ? steps.next : 0));
  ++steps.next;
  const size_t left = steps.run ? steps.run->advance_steps() : steps.session_run->advance_steps();
  if (left > 0) return left;
  steps.is_under_way = false;
  if (steps.session_run) {
    steps.session_run->advance();
    e.take_outputs(steps.session_run->outputs());
  } else if (steps.mode == ForwardMode::train) {
    e.end_training(std::move(*steps.run));
  } else {
    e.take_outputs({steps.run->outputs().begin(), steps.run->outputs().end()});
  }
  steps.run.reset(), steps.session_run.reset();
  return 0;
}

void Executor::backward(std::span<const Tensor> head_gradients) {
  Impl& e = *impl_;
  if (!e.run) throw Error(ErrorCode::invalid_argument, "backward() needs a forward pass for training (is_train) before it");
  std::vector<Tensor> heads(head_gradients.begin(), head_gradients.end());
  if (heads.empty())
    for (const Datum& output : e.outputs) heads.push_back(ones_like(output.tensor()).tensor());
  JointModule::Run run = std::move(*e.run);
  e.run.reset();
  for (auto& [name, rows] : run.backward_to_memory(heads)) {
    Datum& own = e.gradients.at(name);
    own = e.requests.at(name) == GradientRequest::add ? Datum(add_rows(own.sparse_tensor(), rows.sparse_tensor())) : rows;
  }
}

void Executor::Impl::check_argument(const std::string& name, const Datum& value) const {
  if (!value.is_tensor() && !is_sparse(value) && graphs.parameters().contains(name))
    throw Error(ErrorCode::invalid_argument, fmt::format("the parameter \"{}\" is {}", name, describe(value)));
  const auto parameter = graphs.parameters().find(name);
  if (parameter == graphs.parameters().end()) return;
  const bool fits = dense_shape(value) == parameter->second.shape() && element_type(value) == DType::float32;
  if (!fits || (value.is_tensor() && !value.tensor().is_contiguous()))
    throw Error(ErrorCode::invalid_argument, fmt::format("the parameter \"{}\" is bound to {}, contiguous elements of {} are expected",
                                                         name, describe(value), describe(parameter->second)));
  if (is_sparse(value) && graphs.evaluation())
    throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is sparse; the option treadle.storage of the session says so", name));
}

void Executor::Impl::check_gradient(const std::string& name, const Datum& gradient) const {
  const Datum& argument = arguments.at(name);
  if (graphs.has_row_gradient(name)) {
    const bool fits = is_sparse(gradient) && gradient.sparse_tensor().format == SparseTensor::Format::coo &&
                      gradient.sparse_tensor().dense_shape == dense_shape(argument);
    if (!fits)
      throw Error(ErrorCode::invalid_argument, fmt::format("the gradient of \"{}\" is by rows: a sparse tensor of the shape {}, not {}",
                                                           name, to_string(dense_shape(argument)), describe(gradient)));
    return;
  }
  const bool fits = gradient.is_tensor() && gradient.tensor().dtype() == DType::float32 &&
                    gradient.tensor().shape() == dense_shape(argument) && gradient.tensor().is_contiguous();
  if (!fits)
    throw Error(ErrorCode::invalid_argument, fmt::format("the memory for the gradient of \"{}\" is {}; contiguous f32{} is expected", name,
                                                         describe(gradient), to_string(dense_shape(argument))));
  expect_writable(gradient.tensor(), fmt::format("the gradient of \"{}\"", name));
}

void Executor::Impl::check_state(const std::string& name, const Tensor& state) const {
  const Tensor& usual = graphs.states().at(name);
  if (state.dtype() != usual.dtype() || state.shape() != usual.shape() || !state.is_contiguous())
    throw Error(ErrorCode::invalid_argument, fmt::format("the state \"{}\" is bound to {}, contiguous memory of {} is expected", name,
                                                         describe(state), describe(usual)));
}

namespace {

template <typename Values>
auto& bound_value(Values& values, const std::string& name, std::string_view what) {
  const auto found = values.find(name);
  if (found != values.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [each, value] : values) names.push_back(each);
  throw Error(ErrorCode::not_found, fmt::format("the executor has no {} \"{}\"; is it {}?", what, name, nearest_names(name, names)));
}

}  // namespace

void Executor::set_argument(const std::string& name, Datum value) {
  Datum& own = bound_value(impl_->arguments, name, "argument");
  impl_->check_argument(name, value);
  const bool is_plain = (value.is_tensor() || is_sparse(value)) && (own.is_tensor() || is_sparse(own));
  if (is_plain && (dense_shape(value) != dense_shape(own) || element_type(value) != element_type(own)))
    throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is bound to {}, not {}; reshape() makes an executor of other shapes", name,
                                                         describe(own), describe(value)));
  own = std::move(value);
  impl_->is_bound_anew = true;
}

void Executor::set_gradient(const std::string& name, Datum value) {
  Datum& own = bound_value(impl_->gradients, name, "gradient of");
  impl_->check_gradient(name, value);
  own = std::move(value);
}

void Executor::set_state(const std::string& name, Tensor value) {
  Tensor& own = bound_value(impl_->states, name, "state");
  impl_->check_state(name, value);
  own = std::move(value);
  impl_->is_bound_anew = true;
}

void Executor::copy_from(const NamedTensors& values, ExtraNames extra) {
  // Pairs of destination and source. All pairs are checked before any is copied, so that an error changes nothing.
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (const auto& [name, value] : values) {
    const auto argument = impl_->arguments.find(name);
    const auto state = impl_->states.find(name);
    if (argument == impl_->arguments.end() && state == impl_->states.end()) {
      if (extra == ExtraNames::ignore) continue;
      (void)bound_value(impl_->arguments, name, "argument or state");
    }
    const Tensor to = argument != impl_->arguments.end() ? argument->second.tensor() : state->second;
    if (to.dtype() != value.dtype() || to.shape() != value.shape())
      throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is {}, the value is {}", name, describe(to), describe(value)));
    expect_writable(to, fmt::format("\"{}\"", name));
    copies.emplace_back(to, value);
  }
  for (auto& [to, from] : copies) to.copy_from(from);
}

Executor::Executor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Executor::~Executor() = default;
Executor::Executor(Executor&&) noexcept = default;
Executor& Executor::operator=(Executor&&) noexcept = default;
const std::vector<Datum>& Executor::outputs() const { return impl_->outputs; }
const std::vector<std::string>& Executor::output_names() const { return impl_->graphs.output_names(); }
const Feeds& Executor::arguments() const { return impl_->arguments; }
const Feeds& Executor::gradients() const { return impl_->gradients; }
const NamedTensors& Executor::states() const { return impl_->states; }
const GradientRequests& Executor::requests() const { return impl_->requests; }
const ExecutorGraphs& Executor::graphs() const { return impl_->graphs; }

}  // namespace treadle::train
