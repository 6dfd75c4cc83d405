// Runs with bound inputs and outputs. Names are resolved once, when they are bound, so that a run only passes arrays.
#include <fmt/format.h>

#include <algorithm>

#include "core/values/writable.h"
#include "session/session_impl.h"
#include "session/sparse_outputs.h"
#include "treadle/error.h"

namespace treadle {

struct IoBinding::Impl {
  using Adapters = std::vector<std::shared_ptr<const Adapter>>;
  std::shared_ptr<const Session::Impl> session;
  std::map<std::string, Datum, std::less<>> inputs;
  struct Output {
    std::string name;
    std::optional<Tensor> memory;
    std::shared_ptr<Device> device;  // device of the output; null: the host
  };
  std::vector<Output> outputs;
  // The next run derives the members below from those above.
  bool ready = false;
  bool all_constants = false;  // see Request::all_constants
  std::vector<std::string> targets;
  Adapters adapters;
  uint64_t monitor_number = 0;
  ChosenProgram chosen;
  std::vector<std::string> fetched;  // the outputs' names, in the order of binding
  std::vector<size_t> places;        // index of each output in the executable's outputs
  std::vector<Datum> bound, results;
  std::vector<exec::OutputMemory> memory;  // empty: all outputs go to the host

  std::vector<Output>::iterator find_output(std::string_view name) {
    return std::find_if(outputs.begin(), outputs.end(), [&](const Output& output) { return output.name == name; });
  }

  // Notes the run options that determine the program. If they differ from the previous run's, the program is chosen again.
  void note(const RunOptions* options) {
    static const RunOptions kNone;
    const RunOptions& asked = options ? *options : kNone;
    ready = ready && all_constants == !asked.dump_folder.empty() && targets == asked.targets && adapters == asked.adapters;
    if (!ready) all_constants = !asked.dump_folder.empty(), targets = asked.targets, adapters = asked.adapters;
  }

  void prepare(const RunOptions* options) {
    ready = false;
    fetched.clear();
    for (const Output& output : outputs) fetched.push_back(output.name);
    const RunFeeds::Given given(inputs.begin(), inputs.end());
    monitor_number = session->monitor_number.load(std::memory_order_acquire);
    chosen = session->choose_program({.outputs = fetched, .options = options}, RunFeeds(given, options));
    const std::shared_ptr<const Executable>& executable = chosen.executable;
    bound.assign(executable->output_names.size(), Datum());
    results.assign(executable->output_names.size(), Datum());
    places.clear();
    memory.clear();
    for (const Output& output : outputs) {
      const auto& names = executable->output_names;
      places.push_back(position_of(names, output.name));
      if (output.memory) bound[places.back()] = *output.memory;
      if (!output.device) continue;
      memory.resize(names.size());
      memory[places.back()].device = output.device;
    }
    ready = true;
  }
};

IoBinding::IoBinding(const Session& session) : impl_(std::make_unique<Impl>()) { impl_->session = session.impl_; }
IoBinding::~IoBinding() = default;
IoBinding::IoBinding(IoBinding&&) noexcept = default;
IoBinding& IoBinding::operator=(IoBinding&&) noexcept = default;

void IoBinding::bind_input(std::string_view name, Datum value) {
  impl_->session->expect_input(name);
  auto found = impl_->inputs.find(name);
  if (found == impl_->inputs.end()) {
    impl_->inputs.emplace(std::string(name), std::move(value));
    impl_->ready = false;
    return;
  }
  found->second = std::move(value);
  if (!impl_->ready) return;
  // Feeding the same input again (as a decoding loop does) needs no name resolution.
  ChosenProgram& chosen = impl_->chosen;
  const size_t input = position_of(chosen.executable->input_names, name);
  if (input < chosen.feeds.size()) chosen.feeds[input] = found->second;
}

void IoBinding::bind_output(std::string_view name, std::optional<Tensor> memory) {
  if (memory) expect_writable(*memory, fmt::format("output \"{}\"", name));
  const auto known = impl_->find_output(name);
  if (known == impl_->outputs.end()) {
    impl_->outputs.push_back({std::string(name), std::move(memory), nullptr});
    impl_->ready = false;
    return;
  }
  known->memory = std::move(memory);
  if (std::exchange(known->device, nullptr)) impl_->ready = false;
  if (!impl_->ready) return;
  impl_->bound[impl_->places[static_cast<size_t>(known - impl_->outputs.begin())]] = known->memory ? Datum(*known->memory) : Datum();
}

void IoBinding::bind_output_to_device(std::string_view name, std::string_view device) {
  std::shared_ptr<Device> on = device_named(device);
  bind_output(name);
  if (!on) return;
  impl_->find_output(name)->device = std::move(on);
  impl_->ready = false;
}

void IoBinding::clear_inputs() {
  impl_->inputs.clear();
  impl_->ready = false;
}

void IoBinding::clear_outputs() {
  impl_->outputs.clear();
  impl_->results.clear();
  impl_->ready = false;
}

std::vector<Datum> IoBinding::outputs() const {
  if (!impl_->chosen.executable || impl_->results.empty()) return {};
  std::vector<Datum> ordered = in_order_of(impl_->fetched, *impl_->chosen.executable, impl_->results);
  make_sparse(impl_->session->sparse_outputs, impl_->fetched, ordered);
  return ordered;
}

std::vector<std::string> IoBinding::output_names() const {
  std::vector<std::string> names;
  for (const Impl::Output& output : impl_->outputs) names.push_back(output.name);
  return names;
}

void Session::run(IoBinding& binding, const RunOptions* options) const {
  IoBinding::Impl& bound = *binding.impl_;
  bound.note(options);
  if (!bound.ready || bound.monitor_number != impl_->monitor_number.load(std::memory_order_acquire) ||
      impl_->needs_own_symbols(*bound.chosen.executable, bound.chosen.feeds))
    bound.prepare(options);
  impl_->execute(bound.chosen.executable, bound.chosen.feeds, bound.results,
                 {.bound = bound.bound,
                  .memory = bound.memory,
                  .options = options,
                  .monitor = bound.chosen.monitor,
                  .compiled = std::exchange(bound.chosen.compiled, false)});
}

}  // namespace treadle
