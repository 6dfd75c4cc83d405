// Runs over a sequence with state: each run's state outputs become the state inputs of the next run, in the same memory.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "session/hooks.h"
#include "session/session_impl.h"
#include "treadle/error.h"

namespace treadle {
namespace {

/// Returns true if the tensor's memory may be overwritten because only the caller refers to it. @param held  number of the caller's
/// references
bool is_exclusive(const Datum& datum, long held = 1) {
  return datum.is_tensor() && datum.tensor().storage().use_count() == held && datum.tensor().storage()->writable() &&
         !datum.tensor().storage()->lent();
}

/// True if the output is a Concat whose first operand is the input. If the concatenated axis is the outermost axis with more than one
/// element, the output can be computed by appending to the input's memory.
bool appends_to(const Graph& graph, ValueId output, ValueId input) {
  const Value& value = graph.value(output);
  return value.kind == Value::Kind::computed && graph.node(value.producer).is("Concat") && graph.node(value.producer).inputs[0] == input;
}

}  // namespace

struct StatefulRun::Impl {
  struct State {
    StatePair pair;
    Datum value;
    std::shared_ptr<Storage> spare;  // memory of the state before the current one; the next state is written there
  };
  const Session::Impl* session = nullptr;
  std::vector<State> states;
  std::vector<std::string> plain_outputs;  // the outputs that are not states

  State& find(std::string_view input) {
    for (State& state : states)
      if (state.pair.input == input) return state;
    std::vector<std::string> names;
    for (const State& state : states) names.push_back(state.pair.input);
    throw Error(ErrorCode::invalid_argument, fmt::format("there is no state \"{}\"; the states are: {}", input, fmt::join(names, ", ")));
  }

  // Returns zeros of the input's declared shape, which must be fixed.
  Datum initial_value(const std::string& name) const {
    for (const ValueInfo& info : session->model.inputs()) {
      if (info.name != name) continue;
      Shape shape;
      bool fixed = info.has_rank && info.dtype != DType::undefined && info.dtype != DType::string;
      for (const auto& extent : info.shape) {
        const int64_t* value = std::get_if<int64_t>(&extent);
        fixed = fixed && value != nullptr;
        if (fixed) shape.push_back(*value);
      }
      if (!fixed)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the state \"{}\" has no fixed shape: give the value for the first run (an extent may be 0)", name));
      Tensor zeros(info.dtype, shape);
      std::fill_n(zeros.raw(), zeros.size_bytes(), std::byte{0});
      return zeros;
    }
    throw Error(ErrorCode::invalid_argument, fmt::format("there is no input \"{}\"", name));
  }

  void check(const std::vector<StatePair>& pairs) const {
    const auto& outputs = session->main->output_names;
    for (size_t i = 0; i < pairs.size(); ++i) {
      if (!session->known_inputs.contains(pairs[i].input))
        throw Error(ErrorCode::invalid_argument, fmt::format("there is no input \"{}\"", pairs[i].input));
      if (position_of(outputs, pairs[i].output) == outputs.size())
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("there is no output \"{}\"; the outputs are: {}", pairs[i].output, fmt::join(outputs, ", ")));
      for (size_t k = 0; k < i; ++k)
        if (pairs[k].input == pairs[i].input)
          throw Error(ErrorCode::invalid_argument, fmt::format("the input \"{}\" takes its value from two outputs", pairs[i].input));
    }
  }
};

StatefulRun::StatefulRun(const Session& session, const std::vector<StatePair>& pairs, std::map<std::string, Datum> initial)
    : impl_(std::make_unique<Impl>()) {
  impl_->session = session.impl_.get();
  impl_->check(pairs);
  for (const StatePair& pair : pairs) {
    auto given = initial.find(pair.input);
    if (given == initial.end()) {
      impl_->states.push_back({pair, impl_->initial_value(pair.input), nullptr});
    } else {
      impl_->states.push_back({pair, std::move(given->second), nullptr});
      initial.erase(given);
    }
  }
  if (!initial.empty()) impl_->find(initial.begin()->first);  // throws if this is not the name of a state, listing the states
  for (const std::string& name : impl_->session->main->output_names)
    if (std::none_of(pairs.begin(), pairs.end(), [&](const StatePair& pair) { return pair.output == name; }))
      impl_->plain_outputs.push_back(name);
}

StatefulRun::~StatefulRun() = default;
StatefulRun::StatefulRun(StatefulRun&&) noexcept = default;
StatefulRun& StatefulRun::operator=(StatefulRun&&) noexcept = default;

// The value is copied to the host if it lies on a device.
Datum StatefulRun::state(std::string_view input) const {
  const Datum& value = impl_->find(input).value;
  return value.is_tensor() && value.tensor().storage()->device() ? Datum(value.tensor().clone()) : value;
}

void StatefulRun::set_state(std::string_view input, Datum value) { impl_->find(input).value = std::move(value); }

std::vector<Datum> StatefulRun::run(const std::map<std::string, Datum>& given, std::span<const std::string> outputs,
                                    const RunOptions* options) {
  const Session::Impl& session = *impl_->session;
  std::vector<std::string> wanted = outputs.empty() ? impl_->plain_outputs : std::vector<std::string>(outputs.begin(), outputs.end());
  const size_t num_plain = wanted.size();
  RunFeeds feeds(given, options);
  for (const Impl::State& state : impl_->states) {
    wanted.push_back(state.pair.output);
    if (!feeds.add(state.pair.input, state.value))
      throw Error(ErrorCode::invalid_argument, fmt::format("the input \"{}\" is a state: set_state() changes it", state.pair.input));
  }
  ChosenProgram chosen = session.choose_program({.outputs = wanted, .options = options}, feeds);
  const std::shared_ptr<const Executable>& executable = chosen.executable;
  const auto& names = executable->output_names;

  // If an error may occur after the run (in a hook, or in the allocator's check), the state's rows are not moved, because that could not be
  // undone.
  const bool may_move_rows = !session.memory.allocator && !hooks::any(HookPoint::post_run);
  std::vector<exec::OutputMemory> memory(names.size());
  for (Impl::State& state : impl_->states) {
    const size_t position = position_of(names, state.pair.output);
    memory[position].reusable = true;
    memory[position].stays = true;
    memory[position].storage = std::move(state.spare);
    const size_t at = position_of(executable->input_names, state.pair.input);
    // Two references are allowed: that of the state, and that of the feeds.
    if (at == executable->input_names.size() || !is_exclusive(state.value, /*held=*/2)) continue;
    if (appends_to(*executable->graph, executable->graph->outputs[position], executable->graph->inputs[at]))
      memory[position].appends_to = static_cast<int>(at);
    else if (may_move_rows)
      memory[position].grows_from = static_cast<int>(at);
  }

  std::vector<Datum> results(names.size());
  session.execute(executable, chosen.feeds, results,
                  {.memory = memory, .options = options, .monitor = chosen.monitor, .compiled = chosen.compiled});
  chosen.feeds.clear();
  memory.clear();
  for (Impl::State& state : impl_->states) {
    const Datum before = std::exchange(state.value, results[position_of(names, state.pair.output)]);
    if (is_exclusive(before)) state.spare = before.tensor().storage();
  }
  std::vector<Datum> plain;
  for (size_t i = 0; i < num_plain; ++i) {
    const Datum& value = results[position_of(names, wanted[i])];
    const bool is_asked_there = options && options->output_devices.contains(wanted[i]);
    plain.push_back(value.is_tensor() && value.tensor().storage()->device() && !is_asked_there ? Datum(value.tensor().clone()) : value);
  }
  return plain;
}

}  // namespace treadle
