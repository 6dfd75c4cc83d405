// Runs of a session, and what stands around them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>

#include "session/hooks.h"
#include "session/observe.h"
#include "session/session_impl.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle {

exec::RunControl Session::Impl::control(const RunOptions* run_options) const {
  exec::RunControl control;
  ThreadPool* threads = run_options && run_options->thread_pool ? run_options->thread_pool.get() : pool.get();
  control.pool = threads->num_threads() > 1 ? threads : nullptr;
  control.max_threads = pool->num_threads();  // scratch is sized for these, whatever pool a run brings
  control.intra_op_threads = intra_limit;
  if (intra_limit == 0 && threads->num_threads() > control.max_threads) control.intra_op_threads = control.max_threads;
  control.inter_op_threads = inter_limit;
  if (profiling.load(std::memory_order_relaxed)) control.recorder = recorder.get();
  control.run_id = num_runs.fetch_add(1, std::memory_order_relaxed);
  control.closing = &in_flight.closing();
  control.job = job ? job->state().get() : nullptr;
  if (run_options) {
    control.cancel = &run_options->terminate;
    if (run_options->cancel_token) control.token = run_options->cancel_token->flag_.get();
    if (run_options->deadline_ms > 0)
      control.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(run_options->deadline_ms);
  }
  return control;
}

namespace {

std::string message_of(const std::exception_ptr& failure) {
  if (!failure) return {};
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an unknown exception";
  }
}

}  // namespace

void Session::Impl::execute(const Executable& executable, std::span<const Datum> feeds, std::span<Datum> results,
                            std::span<const Datum> bound, const RunOptions* run_options, const Monitor* watcher, bool compiled,
                            std::span<const exec::OutputMemory> memory) const {
  exec::RunControl run_control = control(run_options);
  HookedRun hooked{.run_id = run_control.run_id, .graph_id = executable.id, .tag = run_options ? run_options->tag : std::string_view()};
  RunsInFlight::Entry entry(in_flight, hooked.run_id, hooked.tag);
  sharing::RunScope shared(run_control.job, run_control.pool ? run_control.pool->num_threads() : 1);
  std::optional<RunObserver> observer;
  if (RunObserver::needed(run_options, watcher)) run_control.observer = &observer.emplace(executable, run_options, watcher, hooked.run_id);
  auto compute = [&] {
    try {
      RecordScope scope(run_control.recorder, run_record, RecordKind::run);
      std::optional<ParallelLimit> limit;
      if (run_control.intra_op_threads > 0) limit.emplace(run_control.intra_op_threads);
      if (executable.placed)
        executable.placed->run(feeds, results, run_control, bound);
      else
        exec::run(*executable.program, feeds, results, run_control, bound, {}, memory);
    } catch (const Error& error) {
      explain(executable, feeds, error);
    }
    if (observer) observer->finish(compiled);
  };
  if (!hooks::any(HookPoint::pre_run) && !hooks::any(HookPoint::post_run)) return compute();

  hooks::call(HookPoint::pre_run, hooked);
  std::exception_ptr failure;
  auto start = std::chrono::steady_clock::now();
  try {
    compute();
  } catch (...) {
    failure = std::current_exception();
  }
  hooked.duration_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  std::string message = message_of(failure);
  hooked.error = message;
  try {
    hooks::call(HookPoint::post_run, hooked);
  } catch (...) {
    if (!failure) throw;  // the first error counts
  }
  if (failure) std::rethrow_exception(failure);
}

std::vector<Datum> arrange(const Executable& executable, const std::map<std::string, Datum>& feeds) {
  std::vector<Datum> arranged;
  for (const std::string& name : executable.input_names) {
    auto found = feeds.find(name);
    if (found == feeds.end())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the input \"{}\" is missing; the inputs are: {}", name, fmt::join(executable.input_names, ", ")));
    arranged.push_back(found->second);
  }
  return arranged;
}

std::vector<Datum> Session::run(const std::map<std::string, Datum>& feeds, std::span<const std::string> outputs,
                                const RunOptions* options) const {
  std::vector<std::string> fed;
  for (const auto& [name, value] : feeds) {
    auto found = impl_->known_inputs.find(name);
    if (found == impl_->known_inputs.end() || found->second >= impl_->main->input_names.size()) fed.push_back(name);
  }
  Request request{outputs, fed, {}};
  if (options) request.targets = options->targets;
  request.all_constants = options && !options->dump_folder.empty();
  std::shared_ptr<const Monitor> monitor = impl_->current_monitor();
  bool compiled = false;
  std::shared_ptr<const Executable> executable = impl_->executable(request, monitor.get(), &compiled);
  std::vector<Datum> arranged = arrange(*executable, feeds);
  std::vector<Datum> results(executable->output_names.size());
  impl_->execute(*executable, arranged, results, {}, options, monitor.get(), compiled);
  results.resize(executable->num_fetched);
  return results;
}

std::future<std::vector<Datum>> Session::run_async(std::map<std::string, Datum> feeds, std::vector<std::string> outputs) const {
  return std::async(std::launch::async, [this, feeds = std::move(feeds), outputs = std::move(outputs)] { return run(feeds, outputs); });
}

std::vector<UnfinishedRun> Session::close(int64_t timeout_ms) { return impl_->in_flight.close(timeout_ms); }
bool Session::closed() const { return impl_->in_flight.closed(); }
size_t Session::runs_in_flight() const { return impl_->in_flight.count(); }

std::shared_ptr<const Monitor> Session::Impl::current_monitor() const {
  if (monitor_number.load(std::memory_order_acquire) == 0) return nullptr;
  std::lock_guard lock(monitor_mutex);
  return monitor;
}

void Session::set_monitor(Monitor monitor) {
  auto shared = monitor.callback ? std::make_shared<const Monitor>(std::move(monitor)) : nullptr;
  std::lock_guard lock(impl_->monitor_mutex);
  impl_->monitor.swap(shared);
  impl_->monitor_number.store(impl_->monitor ? ++impl_->last_monitor_number : 0, std::memory_order_release);
}

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
