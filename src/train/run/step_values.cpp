#include "train/run/step_values.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/values/allocation.h"
#include "train/graph/joined_parameters.h"
#include "train/graph/optimizers.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"

namespace treadle::train {

void StepValues::make_optimizer_state(const TrainerOptions& options, const std::vector<std::string>& trained, const DataParallel* ranks) {
  const AllocationContext* memory = AllocationScope::current();
  if (options.accumulation_steps > 1) {
    const AllocationScope scope(memory, MemoryClass::gradients);
    for (const std::string& name : trained) optimizer_state.emplace(state_name(name, kGradient), zeros(parameters.at(name).shape()));
  }
  const AllocationScope scope(memory, MemoryClass::optimizer_state);
  for (const auto& [name, tensor] : parameters)
    for (const std::string& what : state_names(options))
      if (!ranks || ranks->updates(name))
        optimizer_state.emplace(state_name(name, what), what == kAverage ? tensor.clone() : zeros(tensor.shape()));
  if (options.ema_statistics)
    for (const auto& [name, tensor] : states) optimizer_state.emplace(state_name(name, kAverage), tensor.clone());
}

bool StepValues::is_sum(const std::string& state) const {
  return optimizer_state.contains(state) && state.ends_with(state_name("", kGradient));
}

void StepValues::add_held(std::vector<MemoryHolding>& held) const {
  for (const NamedTensors* tensors : {&parameters, &states})
    for (const auto& [name, tensor] : *tensors) held.push_back({name, MemoryClass::parameters, tensor.size_bytes()});
  for (const auto& [name, tensor] : optimizer_state)
    held.push_back({name, is_sum(name) ? MemoryClass::gradients : MemoryClass::optimizer_state, tensor.size_bytes()});
}

NamedTensors StepValues::by_name(const TrainerOptions& options, const std::vector<std::string>& joined) {
  NamedTensors named = joined.empty()
                           ? parameters
                           : lay_side_by_side(parameters, optimizer_state, joined, state_names(options), std::string(kAllParameters));
  named.insert(optimizer_state.begin(), optimizer_state.end());
  named.insert(states.begin(), states.end());
  for (const auto& [name, tensor] : parameters)
    if (auto found = optimizer_state.find(state_name(name, "momentum")); found != optimizer_state.end())
      momentum_.emplace(name, found->second);
  return named;
}

std::vector<Datum> StepValues::write(const Runner& step, const std::function<std::vector<Datum>()>& arrange, const Run& run) {
  auto on_host = [&](std::vector<Datum> arranged) {
    std::vector<Datum> outputs = run(std::move(arranged), step.written(), {});
    half_updated_ = false;
    return outputs;
  };
  std::vector<Datum> arranged = arrange();
  if (staying_ && (may_have_been_written() || is_state_shown_)) staying_->leave();
  if (!staying_ || may_be_written() || is_state_shown_) return on_host(std::move(arranged));
  try {
    const std::vector<exec::OutputMemory> memory = staying_->begin(arranged);
    std::vector<Datum> outputs = run(std::move(arranged), {}, memory);
    staying_->take(outputs);
    half_updated_ = false;
    return outputs;
  } catch (const OutOfMemory&) {  // handled below, after the exception has released its memory
  }
  staying_->leave();  // the device lacks the memory for keeping values there
  staying_.reset();
  return on_host(arrange());
}

void StepValues::end_accumulation(const std::vector<std::string>& names, std::span<const Datum> outputs) {
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (auto state = states.find(names[k]); state != states.end()) state->second.copy_from(outputs[k].tensor());
    if (!is_sum(names[k])) continue;
    Tensor& sum = optimizer_state.at(names[k]);
    std::fill_n(sum.data<float>(), sum.num_elements(), 0.0F);
  }
}

void StepValues::let_stay(const Runner& step) { staying_ = std::make_unique<StayingValues>(*step.executable(), step.written()); }

void StepValues::check_whole() const {
  if (half_updated_)
    throw Error(ErrorCode::invalid_argument,
                "a step has failed behind its first update (early_updates), and left parameters half updated: load a checkpoint");
}

void StepValues::bring_to_host() const {
  check_whole();
  if (staying_) staying_->bring_to_host();
}

const NamedTensors& StepValues::show_state() {
  bring_to_host();
  is_state_shown_ = true;
  return optimizer_state;
}

void StepValues::change(const std::function<void()>& write) {
  struct Noted {
    StepValues& values;
    ~Noted() { values.note_changed(); }
  };
  const exec::Variables::Writing writing(*variables());
  const Noted noted{*this};
  if (staying_) staying_->leave();
  const bool was_state_shown = is_state_shown_;  // restored afterwards, as `write` has access to the state only during this call
  const bool was_half_updated = half_updated_.exchange(false);
  try {
    write();
  } catch (...) {
    half_updated_ = was_half_updated;
    throw;
  }
  is_state_shown_ = was_state_shown;
}

// Calls a function with the name, the value and its average, for each value that has an average.
template <typename Visit>
void StepValues::for_each_average(Visit&& visit) const {
  for (const NamedTensors* values : {&parameters, &states})
    for (const auto& [name, value] : *values)
      if (auto found = optimizer_state.find(state_name(name, kAverage)); found != optimizer_state.end()) visit(name, value, found->second);
}

NamedTensors StepValues::averages() const {
  bring_to_host();
  NamedTensors named;
  for_each_average(
      [&](const std::string& name, const Tensor& value, const Tensor& average) { named.emplace(name, averages_used_ ? value : average); });
  return named;
}

void StepValues::use_averages(bool use) {
  if (use == averages_used_) return;
  check_whole();
  change([&] {
    for_each_average([](const std::string&, Tensor value, Tensor average) {
      std::swap_ranges(value.data<float>(), value.data<float>() + value.num_elements(), average.data<float>());
    });
  });
  averages_used_ = use;
}

void StepValues::check_averages_unused(std::string_view what) const {
  if (averages_used_)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} while the averages are in the parameters' place; use_averages(false) first", what));
}

}  // namespace treadle::train
