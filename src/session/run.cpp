// Runs of a session, and what stands around them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <new>

#include "core/float_mode.h"
#include "exec/trace_marks.h"
#include "session/deadline.h"
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
  control.denormals_as_zero = options.set_denormal_as_zero;
  if (profiling.load(std::memory_order_relaxed)) control.recorder = recorder.get();
  control.run_id = num_runs.fetch_add(1, std::memory_order_relaxed);
  control.closing = &in_flight->closing();
  control.memory = &memory;
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

/// A run that may outlive its call: it owns what it reads and writes.
struct DetachedRun {
  std::shared_ptr<const Executable> executable;
  std::shared_ptr<const Monitor> monitor;
  std::shared_ptr<ThreadPool> pool;  // of the run's options
  std::vector<Datum> feeds, results, bound;
  std::vector<exec::OutputMemory> memory;
  exec::RunControl control;
  exec::Caller caller;
  std::optional<RunObserver> observer;
  std::shared_ptr<RunsInFlight::Entry> entry;
  std::exception_ptr failure;
};

bool is_lent(const Datum& datum) { return datum.is_tensor() && datum.tensor().storage()->lent(); }

}  // namespace

// What leaves the session is not its memory any more.
void hand_over_all(const Datum& datum) {
  switch (datum.kind()) {
    case Datum::Kind::tensor: return hand_over(datum.tensor().storage());
    case Datum::Kind::sparse_tensor:
      for (const Tensor* part : {&datum.sparse_tensor().values, &datum.sparse_tensor().indices, &datum.sparse_tensor().row_offsets})
        if (part->defined()) hand_over(part->storage());
      return;
    case Datum::Kind::sequence:
      for (const Datum& element : datum.sequence().elements) hand_over_all(element);
      return;
    case Datum::Kind::optional:
      if (datum.optional().value) hand_over_all(*datum.optional().value);
      return;
    case Datum::Kind::map: return hand_over(datum.map().values.storage());
    case Datum::Kind::none: return;
  }
}

void Session::Impl::with_hooks(HookedRun hooked, const std::function<void()>& work) const {
  if (!hooks::any(HookPoint::pre_run) && !hooks::any(HookPoint::post_run)) return work();
  hooks::call(HookPoint::pre_run, hooked);
  std::exception_ptr failure;
  auto start = std::chrono::steady_clock::now();
  try {
    work();
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

void Session::Impl::compute(const Executable& executable, std::span<const Datum> feeds, std::span<Datum> results,
                            std::span<const Datum> bound, const exec::RunControl& run_control,
                            std::span<const exec::OutputMemory> output_memory) const {
  AllocationScope scope(&memory, MemoryClass::activations);
  std::optional<MemoryGate::Pass> pass;
  exec::RunControl own = run_control;
  if (gate) own.pass = &pass.emplace(*gate, /*waits=*/true);
  PoolCaller caller(run_control.pool);
  sharing::RunScope shared(run_control.job, run_control.pool ? run_control.pool->num_threads() : 1);
  try {
    RecordScope record(run_control.recorder, run_record, RecordKind::run);
    const exec::RunMark mark(run_control.run_id);
    std::optional<ParallelLimit> limit;
    std::optional<DenormalsAsZero> mode;
    if (run_control.denormals_as_zero) mode.emplace();
    if (run_control.intra_op_threads > 0) limit.emplace(run_control.intra_op_threads);
    if (executable.placed)
      executable.placed->run(feeds, results, run_control, bound);
    else
      exec::run(*executable.program, feeds, results, own, bound, {}, output_memory);
  } catch (const Error& error) {
    explain(executable, feeds, error);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::resource_exhausted, "out of memory");
  }
  for (const Datum& result : results) hand_over_all(result);
  if (memory.allocator) memory.allocator->check();
}

void Session::Impl::execute(const std::shared_ptr<const Executable>& executable, std::span<const Datum> feeds, std::span<Datum> results,
                            std::span<const Datum> bound, const RunOptions* run_options, const std::shared_ptr<const Monitor>& watcher,
                            bool compiled, std::span<const exec::OutputMemory> output_memory) const {
  exec::RunControl run_control = control(run_options);
  HookedRun hooked{.run_id = run_control.run_id, .graph_id = executable->id, .tag = run_options ? run_options->tag : std::string_view()};
  std::vector<exec::OutputMemory> with_allocators;
  if (run_options && !run_options->output_allocators.empty()) {
    with_allocators.assign(output_memory.begin(), output_memory.end());
    with_allocators.resize(executable->output_names.size());
    for (size_t k = 0; k < executable->num_fetched; ++k)
      if (auto found = run_options->output_allocators.find(executable->output_names[k]); found != run_options->output_allocators.end())
        with_allocators[k].allocator = found->second;
    output_memory = with_allocators;
  }

  auto on_this_thread = [&] {
    std::optional<RunObserver> observer;
    if (RunObserver::needed(run_options, watcher.get()))
      run_control.observer = &observer.emplace(*executable, run_options, watcher.get(), hooked.run_id);
    compute(*executable, feeds, results, bound, run_control, output_memory);
    if (observer) observer->finish(compiled);
  };
  std::shared_ptr<RunsInFlight::Entry> shared_entry;  // of a run that may outlive this call
  std::shared_ptr<DetachedRun> detached;
  auto beside = [&] {
    detached->feeds.assign(feeds.begin(), feeds.end());
    for (Datum& feed : detached->feeds)
      if (is_lent(feed)) feed = feed.tensor().clone();
    detached->bound.assign(bound.begin(), bound.end());
    for (Datum& memory_of_caller : detached->bound)
      if (is_lent(memory_of_caller)) memory_of_caller = Datum();  // written at the end, if the caller is still there
    detached->results.resize(results.size());
    detached->memory.assign(output_memory.begin(), output_memory.end());
    detached->executable = executable;
    detached->monitor = watcher;
    detached->control = run_control;
    detached->control.caller = &detached->caller;
    if (run_options->thread_pool) detached->pool = run_options->thread_pool;
    if (RunObserver::needed(run_options, watcher.get()))
      detached->control.observer = &detached->observer.emplace(*executable, run_options, watcher.get(), hooked.run_id);
    detached->entry = shared_entry;
    const bool ended = run_until(*run_control.deadline, detached->caller, [this, run = detached, compiled]() mutable {
      run->entry->runs_on_this_thread();
      try {
        compute(*run->executable, run->feeds, run->results, run->bound, run->control, run->memory);
        if (run->observer) run->control.call([&] { run->observer->finish(compiled); });
      } catch (...) {
        run->failure = std::current_exception();
      }
      auto in_flight_until_here = std::move(run->entry);
      run.reset();  // with all that it holds, if the caller has left; nothing of the session's is touched after the entry
    });
    if (!ended) {
      shared_entry->caller_left();
      shared_entry.reset();
      throw_left(detached->caller);
    }
    if (detached->failure) std::rethrow_exception(detached->failure);
    for (size_t k = 0; k < results.size(); ++k) {
      results[k] = std::move(detached->results[k]);
      if (k >= bound.size() || !is_lent(bound[k])) continue;
      Tensor target = bound[k].tensor();
      if (!results[k].is_tensor() || results[k].tensor().dtype() != target.dtype() || results[k].tensor().shape() != target.shape())
        throw Error(ErrorCode::invalid_argument, fmt::format("output \"{}\" is bound to {}, it is {}", executable->output_names[k],
                                                             describe(target), describe(results[k])));
      target.copy_from(results[k].tensor());
      results[k] = bound[k];
    }
  };

  std::optional<RunsInFlight::Entry> entry;
  if (run_control.deadline) {
    detached = std::make_shared<DetachedRun>();
    shared_entry = in_flight->enter(hooked.run_id, hooked.tag);
  } else {
    entry.emplace(*in_flight, hooked.run_id, hooked.tag);
  }
  auto either = [&] { run_control.deadline ? beside() : on_this_thread(); };
  with_hooks(hooked, std::ref(either));  // by reference: a copy would be allocated
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

std::vector<std::string> Session::Impl::fed_values(const std::map<std::string, Datum>& feeds) const {
  std::vector<std::string> fed;
  for (const auto& [name, value] : feeds) {
    auto found = known_inputs.find(name);
    if (found == known_inputs.end() || found->second >= main->input_names.size()) fed.push_back(name);
  }
  return fed;
}

std::vector<Datum> Session::run(const std::map<std::string, Datum>& feeds, std::span<const std::string> outputs,
                                const RunOptions* options) const {
  const std::vector<std::string> fed = impl_->fed_values(feeds);
  Request request{outputs, fed, {}};
  if (options) request.targets = options->targets;
  request.all_constants = options && !options->dump_folder.empty();
  std::shared_ptr<const Monitor> monitor = impl_->current_monitor();
  bool compiled = false;
  std::shared_ptr<const Executable> executable = impl_->executable(request, monitor.get(), &compiled);
  std::vector<Datum> arranged = arrange(*executable, feeds);
  std::vector<Datum> results(executable->output_names.size());
  impl_->execute(executable, arranged, results, {}, options, monitor, compiled);
  results.resize(executable->num_fetched);
  return results;
}

std::future<std::vector<Datum>> Session::run_async(std::map<std::string, Datum> feeds, std::vector<std::string> outputs) const {
  return std::async(std::launch::async, [this, feeds = std::move(feeds), outputs = std::move(outputs)] { return run(feeds, outputs); });
}

std::vector<UnfinishedRun> Session::close(int64_t timeout_ms) { return impl_->in_flight->close(timeout_ms); }
bool Session::closed() const { return impl_->in_flight->closed(); }
size_t Session::runs_in_flight() const { return impl_->in_flight->count(); }

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
