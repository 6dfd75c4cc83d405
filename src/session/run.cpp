// Runs of a session: choosing the program, feeding it, and returning its outputs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "exec/run/feed_binder.h"
#include "session/run_names.h"
#include "session/session_impl.h"
#include "session/sparse_outputs.h"
#include "treadle/error.h"

namespace treadle {

RunFeeds::RunFeeds(const Given& given, const RunOptions* options) : given_(given) {
  if (!options) return;
  for (const auto& adapter : options->adapters)
    for (const auto& [name, value] : adapter->parameters)
      if (!add(name, of_adapters_.emplace_back(value)))
        throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\", a parameter of an adapter, is fed already", name));
}

const Datum* RunFeeds::find(const std::string& name) const {
  if (const auto found = given_.find(name); found != given_.end()) return &found->second;
  const auto found = added_.find(name);
  return found == added_.end() ? nullptr : found->second;
}

ChosenProgram Session::Impl::choose_program(const Wanted& wanted, const RunFeeds& feeds) const {
  return in_flight->counting_errors([&] { return find_program(wanted, feeds); });
}

ChosenProgram Session::Impl::find_program(const Wanted& wanted, const RunFeeds& feeds) const {
  const std::vector<std::string> fed = feeds.names([this](const std::string& name) { return is_fed_apart(name); });
  std::vector<std::string> targets(wanted.kept.begin(), wanted.kept.end());
  if (wanted.options) targets.insert(targets.end(), wanted.options->targets.begin(), wanted.options->targets.end());
  Request request{.fetches = wanted.outputs, .fed = fed, .targets = targets};
  request.all_constants = wanted.options && !wanted.options->dump_folder.empty();
  ChosenProgram chosen{.monitor = current_monitor(), .executable = nullptr, .feeds = {}};
  auto choose = [&] {
    chosen.executable = executable(request, chosen.monitor.get(), &chosen.compiled);
    chosen.feeds.clear();
    for (const std::string& name : chosen.executable->input_names) {
      const Datum* value = feeds.find(name);
      const exec::Program& program = *chosen.executable->program;
      if (!value && !wanted.takes_feeds_later && exec::needs_feed(program, program.input_slots()[chosen.feeds.size()]))
        throw exec::MissingInput(name, fmt::format("the inputs are: {}", fmt::join(chosen.executable->input_names, ", ")));
      chosen.feeds.push_back(value ? *value : Datum());
    }
  };
  choose();
  request.own_symbols = needs_own_symbols(*chosen.executable, chosen.feeds);
  if (request.own_symbols) choose();
  return chosen;
}

void Session::Impl::expect_input(std::string_view name) const {
  auto is_name = [&](const std::string& other) { return other == name; };
  if (known_inputs.contains(std::string(name)) || std::any_of(main->output_names.begin(), main->output_names.end(), is_name)) return;
  for (const onnx::NodeDef& node : model.impl().def.graph.nodes)
    if (std::any_of(node.outputs.begin(), node.outputs.end(), is_name)) return;
  throw_no_input(name, main->input_names);
}

std::vector<Datum> Session::run(const std::map<std::string, Datum>& feeds, std::span<const std::string> outputs,
                                const RunOptions* options) const {
  const ChosenProgram chosen = impl_->choose_program({.outputs = outputs, .options = options}, RunFeeds(feeds, options));
  std::vector<Datum> results(chosen.executable->output_names.size());
  impl_->execute(chosen.executable, chosen.feeds, results, {.options = options, .monitor = chosen.monitor, .compiled = chosen.compiled});
  std::vector<Datum> ordered = in_order_of(outputs, *chosen.executable, std::move(results));
  if (!impl_->sparse_outputs.empty())
    make_sparse(impl_->sparse_outputs, outputs.empty() ? std::span<const std::string>(chosen.executable->output_names) : outputs, ordered);
  return ordered;
}

std::future<std::vector<Datum>> Session::run_async(std::map<std::string, Datum> feeds, std::vector<std::string> outputs) const {
  return std::async(std::launch::async, [this, feeds = std::move(feeds), outputs = std::move(outputs)] { return run(feeds, outputs); });
}

std::vector<UnfinishedRun> Session::close(int64_t timeout_ms) { return impl_->in_flight->close(timeout_ms); }
bool Session::closed() const { return impl_->in_flight->closed(); }
size_t Session::runs_in_flight() const { return impl_->in_flight->count(); }

void Session::set_monitor(Monitor monitor) { impl_->set_monitor(std::move(monitor)); }

ValueHandle Session::store(Datum value) {
  if (!value.defined()) throw Error(ErrorCode::invalid_argument, "there is no value to store");
  std::lock_guard lock(impl_->stored_mutex);
  impl_->stored.emplace(++impl_->last_handle, std::move(value));
  return impl_->last_handle;
}

Datum Session::stored(ValueHandle handle) const {
  std::lock_guard lock(impl_->stored_mutex);
  auto found = impl_->stored.find(handle);
  if (found == impl_->stored.end()) throw Error(ErrorCode::not_found, fmt::format("the session keeps no value {}", handle));
  return found->second;
}

void Session::erase(ValueHandle handle) {
  Datum dropped;  // declared before the lock, so that the value is freed only after the lock is released
  std::lock_guard lock(impl_->stored_mutex);
  auto found = impl_->stored.find(handle);
  if (found == impl_->stored.end()) throw Error(ErrorCode::not_found, fmt::format("the session keeps no value {}", handle));
  dropped = std::move(found->second);
  impl_->stored.erase(found);
}

size_t Session::num_stored() const {
  std::lock_guard lock(impl_->stored_mutex);
  return impl_->stored.size();
}

}  // namespace treadle
