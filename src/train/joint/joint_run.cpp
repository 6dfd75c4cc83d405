// Runs of joint modules: the forward pass up to the Yield, then the backward pass in parts.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>

#include "exec/run/trace_marks.h"
#include "train/graph/row_gradients.h"
#include "train/joint/joint_graph.h"
#include "train/joint/joint_module_impl.h"
#include "treadle/error.h"

namespace treadle::train {

// Writes the running statistics at the end of the pass that computes them, so that a failed pass changes nothing.
template <typename ValueOf>
void JointModule::Run::Impl::write_states(bool is_late, const ValueOf& value_of) {
  std::vector<std::pair<Tensor, Datum>> made;
  for (const StateUpdate& update : updates)
    if (update.is_late == is_late) made.emplace_back(update.memory, value_of(update.result));
  for (auto& [memory, value] : made) memory.copy_from(value.tensor());
}

void JointModule::Run::Impl::take_yielded() {
  has_outputs = true;
  const std::vector<Datum> values = module->forward_only ? run->take_outputs() : run->run().yielded();
  write_states(/*is_late=*/false, [&](size_t result) { return module->forward_only ? values[result] : run->output(result); });
  for (size_t i = 0; i < module->output_names.size(); ++i)
    outputs.push_back(i < module->copied.size() && module->copied[i] ? values[i].tensor().clone() : values[i].tensor());
  if (module->forward_only) run.reset();
}

size_t JointModule::Run::steps_left() const { return impl_->has_outputs || !impl_->run ? 0 : impl_->run->run().steps_left(); }

size_t JointModule::Run::advance_steps(size_t count) {
  if (impl_->has_outputs) return 0;
  impl_->run->advance(count);
  const size_t left = impl_->run->run().steps_left();
  if (left == 0) impl_->take_yielded();
  return left;
}

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
  if (impl_->has_memory) throw Error(ErrorCode::invalid_argument, "the gradients have memory: call backward_to_memory()");
  std::vector<int> results;
  for (size_t gradient : gradients) {
    if (gradient >= impl_->given.size() || impl_->given[gradient])
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the gradient {} of {} has been taken, or there is none", gradient, impl_->given.size()));
    impl_->given[gradient] = true;
    for (int result : {module.result_of[gradient], module.rows_of[gradient]})
      if (result >= 0) results.push_back(result);
  }
  std::shared_ptr<StoppableRun> run = std::move(impl_->run);  // impl_->run stays null if an error occurs
  if (const exec::InstructionId last = made_by(*run->executable().program, results); last != exec::kNoInstruction)
    if (const size_t steps = run->run().steps_through(last); steps > 0) run->advance(steps);
  // A gradient that shares memory with a feed or another gradient is copied, because the caller may overwrite each result.
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
  const std::vector<Datum> values = run->take_outputs();
  impl_->write_states(/*is_late=*/true, [&](size_t result) { return values[result]; });
  return made;
}

Feeds JointModule::Run::backward_to_memory(std::span<const Tensor> grad_outputs) {
  if (!impl_->has_memory) throw Error(ErrorCode::invalid_argument, "the run has no memory for its gradients: begin_with_memory() takes it");
  begin_backward(grad_outputs);
  const exec::PartMark mark("treadle backward");
  const JointModule::Impl& module = *impl_->module;
  const std::shared_ptr<StoppableRun> run = std::move(impl_->run);
  if (!run->run().finished() && !run->advance()) throw Error(ErrorCode::internal, "a second Yield");
  const std::vector<Datum> results = run->take_outputs();
  impl_->write_states(/*is_late=*/true, [&](size_t result) { return results[result]; });
  Feeds by_rows;
  for (size_t g = 0; g < module.gradient_names.size(); ++g) {
    if (module.rows_of[g] < 0) continue;
    const std::string& name = module.gradient_names[g];
    auto [values, places] = without_padding(results[static_cast<size_t>(module.result_of[g])].tensor(),
                                            results[static_cast<size_t>(module.rows_of[g])].tensor());
    by_rows.emplace(name, SparseTensor{.dense_shape = module.parameters.at(name).shape(), .values = values, .indices = places});
  }
  return by_rows;
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

}  // namespace treadle::train
