// Runs of a session, and what stands around them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "session/session_impl.h"
#include "treadle/error.h"

namespace treadle {

CompleteFeeds::CompleteFeeds(const Feeds& given, const Adapters& adapters) : given_(given) {
  for (const auto& adapter : adapters) {
    if (!merged_) merged_ = given;
    for (const auto& [name, value] : adapter->parameters)
      if (!merged_->emplace(name, value).second)
        throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\", a parameter of an adapter, is fed already", name));
  }
}

std::vector<Datum> arrange(const Executable& executable, const std::map<std::string, Datum>& feeds, bool some_later) {
  std::vector<Datum> arranged;
  for (const std::string& name : executable.input_names) {
    auto found = feeds.find(name);
    if (found == feeds.end() && !some_later)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the input \"{}\" is missing; the inputs are: {}", name, fmt::join(executable.input_names, ", ")));
    arranged.push_back(found == feeds.end() ? Datum() : found->second);
  }
  return arranged;
}

std::vector<std::string> Session::Impl::fed_values(const std::map<std::string, Datum>& feeds) const {
  std::vector<std::string> fed;
  for (const auto& [name, value] : feeds)
    if (is_fed_apart(name)) fed.push_back(name);
  return fed;
}

void Session::Impl::expect_value(std::string_view name, std::string_view what) const {
  auto is_name = [&](const std::string& other) { return other == name; };
  if (known_inputs.contains(std::string(name)) || std::any_of(main->output_names.begin(), main->output_names.end(), is_name)) return;
  for (const onnx::NodeDef& node : model.impl().def.graph.nodes)
    if (std::any_of(node.outputs.begin(), node.outputs.end(), is_name)) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no {} \"{}\"; the {}s are: {}", what, name, what,
                                                       fmt::join(what == "input" ? main->input_names : main->output_names, ", ")));
}

std::vector<Datum> Session::run(const std::map<std::string, Datum>& given, std::span<const std::string> outputs,
                                const RunOptions* options) const {
  const CompleteFeeds complete(given, options);
  const std::map<std::string, Datum>& feeds = *complete;
  const std::vector<std::string> fed = impl_->fed_values(feeds);
  Request request{outputs, fed, {}};
  if (options) request.targets = options->targets;
  request.all_constants = options && !options->dump_folder.empty();
  std::shared_ptr<const Monitor> monitor = impl_->current_monitor();
  bool compiled = false;
  std::shared_ptr<const Executable> executable = impl_->executable(request, monitor.get(), &compiled);
  std::vector<Datum> arranged = arrange(*executable, feeds);
  if (impl_->needs_own_symbols(*executable, arranged)) {
    request.own_symbols = true;
    executable = impl_->executable(request, monitor.get(), &compiled);
    arranged = arrange(*executable, feeds);
  }
  std::vector<Datum> results(executable->output_names.size());
  impl_->execute(executable, arranged, results, {.options = options, .monitor = std::move(monitor), .compiled = compiled});
  return in_order_of(outputs, *executable, std::move(results));
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
  Datum dropped;  // freed outside the lock
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
