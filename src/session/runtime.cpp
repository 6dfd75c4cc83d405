#include "session/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <numeric>
#include <utility>

#include "core/threads/float_mode.h"
#include "exec/memory/shortage.h"
#include "exec/plan/plans.h"
#include "exec/program/load_shortage.h"
#include "exec/run/trace_marks.h"
#include "session/clients.h"
#include "session/deadline.h"
#include "session/hooks.h"
#include "session/log.h"
#include "session/model.h"
#include "session/observe.h"
#include "session/options.h"
#include "session/refusals.h"
#include "session/run_names.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle {
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

// Calls the pre-run hooks, then `work`, then the post-run hooks.
template <typename Work>
void with_hooks(HookedRun hooked, Work&& work) {
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
    if (!failure) throw;  // if `work` failed, its error is thrown instead of the hook's
  }
  if (failure) std::rethrow_exception(failure);
}

/// The data of a run whose caller may return before it ends: the run owns everything that it reads and writes.
struct DetachedRun {
  std::shared_ptr<const Executable> executable;
  std::shared_ptr<const Monitor> monitor;
  std::shared_ptr<ThreadPool> pool;  // keeps the pool of the run's options alive
  std::vector<Datum> feeds, results, bound;
  std::vector<exec::OutputMemory> memory;
  std::shared_ptr<const void> held;
  exec::RunControl control;
  exec::Caller caller;
  std::optional<RunObserver> observer;
};

bool is_lent(const Datum& datum) { return datum.is_tensor() && datum.tensor().storage()->lent(); }

void copy_to_bound(const Executable& executable, size_t output, const Datum& bound, Datum& result) {
  Tensor target = bound.tensor();
  if (!result.is_tensor() || result.tensor().dtype() != target.dtype() || result.tensor().shape() != target.shape())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("output \"{}\" is bound to {}, it is {}", executable.output_names[output], describe(target), describe(result)));
  target.copy_from(result.tensor());
  result = bound;
}

}  // namespace

Runtime::Runtime(const SessionOptions& session_options, std::string owner)
    : options(complete(session_options)),
      name(std::move(owner)),
      job(options.job ? options.job : environment_job()),
      devices(options, job),
      memory{options.allocator, nullptr} {
  apply_log_environment();
  if (job && !devices.any() && !options.memory_account) job_memory = exec::JobMemory::of(job->state());
  const std::pair<const char*, double> fractions[] = {{"memory_fraction", options.memory_fraction},
                                                      {"recompute_fraction", options.recompute_fraction}};
  for (const auto& [name, fraction] : fractions)
    if (fraction > 0 && devices.any()) refuse("execution on devices", name);
  if (const Device* apart = devices.with_own_memory(); apart && options.allocator)
    refuse("a device with memory of its own", "allocator", apart->name());
  // With devices, the limit applies to their memory, not to the host's.
  const size_t host_limit = devices.any() ? 0 : options.memory_limit_bytes;
  memory.account = std::make_shared<MemoryAccount>(name, host_limit, job_memory ? job_memory->account() : options.memory_account);
  choose_threads();
  if (options.recompute_fraction > 0 && parallel) refuse("parallel execution", "recompute_fraction");
  if (options.memory_limit_bytes > 0 && devices.any()) devices.set_memory_limit(options.memory_limit_bytes);
  if (!options.enable_profiling) return;
  start_profiling({});
}

Runtime::Making::Making(const Runtime& runtime, const Model& model)
    : memory_(&runtime.memory, MemoryClass::weights),
      scope_((runtime.load.add(model.impl().load), runtime.load)),
      phase_(runtime.name.starts_with("the ") ? "make " + runtime.name.substr(4) : "make " + runtime.name) {}

Runtime::MakingFurther::MakingFurther(const Runtime& runtime, std::string_view what)
    : runtime_(runtime), memory_(&runtime.memory, MemoryClass::weights), scope_(phases_), phase_(fmt::format("make graph: {}", what)) {}

Runtime::MakingFurther::~MakingFurther() {
  phase_.reset();
  try {
    runtime_.load.add(phases_);
  } catch (const std::bad_alloc&) {  // ignored: the graph can be used without its times
  }
}

void Runtime::rethrow_with_memory(std::string_view made) const {
  exec::rethrow_with_memory([&](const OutOfMemory& error) { return exec::describe_making(error, memory.account.get()); },
                            fmt::format("while {} was made", made), exec::Details::if_none);
}

Runtime::~Runtime() {
  if (job_memory) job_memory->report();
}

// The threads of nodes and the nodes that run concurrently share one pool. A client that sets its own numbers of threads gets a pool of the
// larger number. Negative numbers mean the default, as in ONNX Runtime, because some packages pass -1.
void Runtime::choose_threads() {
  const int intra = std::max(options.intra_op_num_threads, 0), inter = std::max(options.inter_op_num_threads, 0);
  parallel = options.execution_mode == ExecutionMode::parallel && inter != 1;
  inter_limit = parallel ? inter : 1;
  if (options.thread_pool)
    pool = options.thread_pool;
  else
    pool = intra == 0 ? ThreadPool::shared() : std::make_shared<ThreadPool>(parallel ? std::max(intra, inter) : intra);
  if (intra > 0 && intra < pool->num_threads()) intra_limit = intra;
}

double Runtime::recompute_fraction() const {
  constexpr double kOfTraining = 0.1;  // maximum fraction up to which recomputation pays off in training
  if (options.recompute_fraction >= 0) return options.recompute_fraction;
  return options.mode == SessionMode::training && !devices.any() && !parallel ? kOfTraining : 0;
}

exec::ProgramOptions Runtime::program_options() const {
  return {.reuse_memory = options.reuse_memory,
          .pool = pool.get(),
          .parallel = parallel || devices.any(),  // the streams of a device run concurrently
          .shared = job != nullptr,
          .memory = &memory,
          .pieces_in_place = !devices.any(),
          .verify_plans = options.verify_plans,
          .arena_share = options.memory_fraction > 0 ? options.memory_fraction : 1,
          .recompute_fraction = recompute_fraction(),
          .recompute_pays = options.recompute_fraction < 0,
          .device_kernel = devices.have_kernels() ? [this](const Graph& graph, const Node& node) { return devices.kernel_for(graph, node); }
                                                  : std::function<DeviceKernel(const Graph&, const Node&)>()};
}

std::unique_ptr<exec::Executor> Runtime::make_executor(const exec::Program& program) const {
  if (!devices.any()) return exec::make_host_executor(program);
  return devices.place(program, options.mode == SessionMode::training);
}

std::shared_ptr<Executable> Runtime::make_executable(std::shared_ptr<const Graph> graph, const exec::ProgramOptions& lowering) const {
  static std::atomic<uint64_t> last_id{0};
  const LoadPhases::Phase phase("lower");
  auto made = std::make_shared<Executable>();
  made->graph = std::move(graph);
  made->program = std::make_unique<exec::Program>(made->graph, lowering);
  for (ValueId input : made->graph->inputs) made->input_names.push_back(made->graph->value(input).name);
  made->output_names = made->graph->output_names;
  made->num_fetched = made->output_names.size();
  made->id = ++last_id;
  made->executor = make_executor(*made->program);
  return made;
}

void Runtime::enlist(const Model& model, std::function<void()> trim) {
  if ((options.memory_limit_bytes > 0 && !devices.any()) || options.memory_fraction > 0 || recompute_fraction() > 0 || job_memory)
    gate = std::make_unique<exec::MemoryGate>(memory, options.spill_folder, std::move(trim), job_memory);
  if (job_memory) job_memory->report();
  Clients::of_process().add(*this, model.metadata().graph_name);
  if (log_enabled(LogLevel::info, LogCategory::session)) log_ready(*this, model.metadata().graph_name);
}

void Runtime::delist() noexcept {
  if (log_enabled(LogLevel::info, LogCategory::session)) log_end(*this);
  Clients::of_process().remove(*this);
  attached.end();
  gate.reset();
}

void Runtime::add_bindings(std::span<const std::shared_ptr<const Executable>> executables, CacheStatistics& sum) {
  for (const auto& executable : executables) {
    const exec::BindingCache::Statistics bindings = executable->executor->plans().bindings().statistics();
    sum.binding_hits += bindings.hits, sum.binding_misses += bindings.misses, sum.memory_plans += bindings.plans;
    ++sum.size;
  }
}

void Runtime::set_memory_limit(size_t limit_bytes) {
  if (options.memory_limit_bytes == 0) throw Error(ErrorCode::invalid_argument, name + " was made without a memory limit");
  if (gate)
    gate->set_limit(limit_bytes);
  else
    devices.set_memory_limit(limit_bytes);
}

std::shared_ptr<const Monitor> Runtime::current_monitor() const {
  if (monitor_number.load(std::memory_order_acquire) == 0) return nullptr;
  std::lock_guard lock(monitor_mutex_);
  return monitor_;
}

void Runtime::set_monitor(Monitor made) {
  auto shared = made.callback ? std::make_shared<const Monitor>(std::move(made)) : nullptr;
  std::lock_guard lock(monitor_mutex_);
  monitor_.swap(shared);
  monitor_number.store(monitor_ ? ++last_monitor_number_ : 0, std::memory_order_release);
}

exec::RunControl Runtime::control(const RunOptions* run_options) const {
  exec::RunControl control;
  ThreadPool* threads = run_options && run_options->thread_pool ? run_options->thread_pool.get() : pool.get();
  control.threads.pool = threads->num_threads() > 1 ? threads : nullptr;
  // Scratch buffers are sized for the client's pool, even if a run brings a larger one.
  control.threads.max_threads = pool->num_threads();
  control.threads.intra_op = intra_limit;
  if (intra_limit == 0 && threads->num_threads() > control.threads.max_threads) control.threads.intra_op = control.threads.max_threads;
  control.threads.inter_op = inter_limit;
  control.threads.denormals_as_zero = options.set_denormal_as_zero;
  set_recorder(control);
  control.run_id = num_runs.fetch_add(1, std::memory_order_relaxed);
  control.counts_nodes = options.node_counters;
  control.stop.closing = &in_flight->closing();
  control.memory.context = &memory;
  control.job = job ? job->state().get() : nullptr;
  if (run_options) {
    control.stop.cancel = &run_options->terminate;
    if (run_options->cancel_token) control.stop.token = &run_options->cancel_token->flag();
  }
  const int64_t own_deadline_ms = run_options ? run_options->deadline_ms : 0;
  constexpr int64_t kMostMs = int64_t{1} << 40;  // about 35 years: a later time would overflow the clock
  if (const int64_t deadline_ms = own_deadline_ms > 0 ? own_deadline_ms : options.deadline_ms; deadline_ms > 0)
    control.stop.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(std::min(deadline_ms, kMostMs));
  return control;
}

void Runtime::set_recorder(exec::RunControl& control) const {
  if (job) attached.follow(*this);
  control.recording.recorder = nullptr;
  control.recording.kernel_phases = false;
  if (num_recording.load(std::memory_order_acquire) == 0) return;
  control.recording.recorder = &Recorder::of_process();
  control.recording.recorder->anchor_if_due();
  if (control.recording.run == 0) control.recording.run = Recorder::next_run();
  control.recording.kernel_phases = phases_wanted();
}

namespace {

size_t bytes_of(const Datum& datum) {
  switch (datum.kind()) {
    case Datum::Kind::tensor: return datum.tensor().defined() ? datum.tensor().size_bytes() : 0;
    case Datum::Kind::sparse_tensor: {
      size_t bytes = 0;
      for (const Tensor* part : {&datum.sparse_tensor().values, &datum.sparse_tensor().indices, &datum.sparse_tensor().row_offsets})
        if (part->defined()) bytes += part->size_bytes();
      return bytes;
    }
    case Datum::Kind::sequence: return bytes_of(std::span<const Datum>(datum.sequence().elements));
    case Datum::Kind::optional: return datum.optional().value ? bytes_of(*datum.optional().value) : 0;
    case Datum::Kind::map: return bytes_of(datum.map().values);
    case Datum::Kind::none: return 0;
  }
  return 0;
}

}  // namespace

size_t bytes_of(std::span<const Datum> values) {
  return std::accumulate(values.begin(), values.end(), size_t{0}, [](size_t sum, const Datum& value) { return sum + bytes_of(value); });
}

// Removes the value's memory from the session's account, because the value now belongs to the caller.
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

void Runtime::call(const exec::RunControl& control, exec::Caller& caller, HookedRun hooked, std::function<void()> work,
                   RunValues values) const {
  if (!log_enabled(LogLevel::info, LogCategory::run)) [[likely]]
    return call_untold(control, caller, hooked, std::move(work), values);
  if (log_enabled(LogLevel::verbose, LogCategory::run)) log_run(*this, hooked);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  try {
    call_untold(control, caller, hooked, std::move(work), values);
  } catch (...) {
    log_run_end(*this, hooked, seconds(), message_of(std::current_exception()));
    throw;
  }
  log_run_end(*this, hooked, seconds(), {});
}

void Runtime::call_untold(const exec::RunControl& control, exec::Caller& caller, HookedRun hooked, std::function<void()> work,
                          RunValues values) const {
  if (!control.stop.deadline) {
    RunsInFlight::Entry entry(*in_flight, hooked.run_id, hooked.tag);
    in_flight->counting_errors([&] { with_hooks(hooked, [&] { compute_around(control, work); }); });
    if (RunsInFlight::counts_runs()) entry.note_bytes(bytes_of(values.feeds), bytes_of(values.results));
    return;
  }
  struct Outcome {
    std::function<void()> work;
    std::exception_ptr failure;
    std::shared_ptr<RunsInFlight::Entry> entry;
  };
  auto outcome = std::make_shared<Outcome>();
  outcome->work = std::move(work);
  outcome->entry = in_flight->enter(hooked.run_id, hooked.tag);
  const auto wait = [&] {
    auto entry = outcome->entry;
    const bool ended = run_until(*control.stop.deadline, caller, [this, &control, outcome]() mutable {
      outcome->entry->runs_on_this_thread();
      try {
        compute_around(control, outcome->work);
      } catch (...) {
        outcome->failure = std::current_exception();
      }
      auto in_flight_until_here = std::move(outcome->entry);
      // Destroys the work now, in case the caller has left: once `entry` is destroyed, this thread must not access the client.
      outcome->work = nullptr;
    });
    if (!ended) {
      entry->caller_left();
      entry.reset();
      throw_left(caller);
    }
    if (outcome->failure) std::rethrow_exception(outcome->failure);
  };
  in_flight->counting_errors([&] { with_hooks(hooked, wait); });
  if (RunsInFlight::counts_runs()) in_flight->count_bytes(bytes_of(values.feeds), bytes_of(values.results));
}

template <typename Work>
void Runtime::compute_around(const exec::RunControl& control, Work&& work) const {
  AllocationScope scope(&memory, MemoryClass::activations);
  PoolCaller caller(control.threads.pool);
  sharing::RunScope shared(control.job, control.threads.pool ? control.threads.pool->num_threads() : 1);
  try {
    RecordScope record(control.recording.recorder, records.run, RecordKind::run, control.recording.run);
    const exec::RunMark mark(control.run_id);
    std::optional<ParallelLimit> limit;
    std::optional<DenormalsAsZero> mode;
    if (control.threads.denormals_as_zero) mode.emplace();
    if (control.threads.intra_op > 0) limit.emplace(control.threads.intra_op);
    work();
  } catch (...) {
    exec::rethrow_with_memory([&](const OutOfMemory&) { return exec::describe_account(control.memory.account()); }, "in a run",
                              exec::Details::if_none);
  }
}

void Runtime::compute(const Executable& executable, std::span<const Datum> feeds, std::span<Datum> results, std::span<const Datum> bound,
                      const exec::RunControl& run_control, std::span<const exec::OutputMemory> output_memory) const {
  std::optional<exec::MemoryGate::Pass> pass;
  exec::RunControl own = run_control;
  if (gate) own.memory.pass = &pass.emplace(*gate, /*ends_by_itself=*/true);
  try {
    executable.executor->run(feeds, results, own, bound, output_memory);
  } catch (const Error& error) {
    if (executable.explain) executable.explain(executable, feeds, error);
    throw;
  }
  for (size_t k = 0; k < results.size(); ++k)
    if (k >= bound.size() || !bound[k].defined()) hand_over_all(results[k]);
  if (memory.allocator) memory.allocator->check();
}

void Runtime::execute(const std::shared_ptr<const Executable>& executable, std::span<const Datum> feeds, std::span<Datum> results,
                      const RunRequest& request) const {
  const RunOptions* run_options = request.options;
  exec::RunControl run_control = control(run_options);
  if (request.random_id) run_control.run_id = *request.random_id;
  run_control.stop.committed = request.committed;
  const HookedRun hooked{
      .run_id = run_control.run_id, .graph_id = executable->id, .tag = run_options ? run_options->tag : std::string_view()};
  check_names(*executable, run_options, request.monitor.get(), request.bound);
  std::span<const exec::OutputMemory> output_memory = request.memory;
  std::vector<exec::OutputMemory> with_options;
  if (run_options && (!run_options->output_allocators.empty() || !run_options->output_devices.empty())) {
    with_options.assign(output_memory.begin(), output_memory.end());
    add_output_memory(*executable, run_options, with_options);
    output_memory = with_options;
  }
  const bool observed = RunObserver::needed(run_options, request.monitor.get());
  if (!run_control.stop.deadline) {
    auto on_this_thread = [&] {
      std::optional<RunObserver> observer;
      if (observed) run_control.observer = &observer.emplace(*executable, run_options, request.monitor.get(), hooked.run_id, memory);
      compute(*executable, feeds, results, request.bound, run_control, output_memory);
      if (observer) observer->finish(request.compiled);
    };
    exec::Caller stays;
    // std::ref, because copying the function into a std::function would allocate.
    call(run_control, stays, hooked, std::ref(on_this_thread), {feeds, results});
    return;
  }
  auto detached = std::make_shared<DetachedRun>();
  detached->feeds.assign(feeds.begin(), feeds.end());
  for (Datum& feed : detached->feeds)
    if (is_lent(feed)) feed = feed.tensor().clone();
  detached->bound.assign(request.bound.begin(), request.bound.end());
  for (Datum& memory_of_caller : detached->bound)
    // Drops the caller's memory, which must not be written after the caller has returned; the caller copies the result at the end.
    if (is_lent(memory_of_caller)) memory_of_caller = Datum();
  detached->results.resize(results.size());
  detached->memory.assign(output_memory.begin(), output_memory.end());
  detached->executable = executable;
  detached->monitor = request.monitor;
  detached->held = request.held;
  detached->control = run_control;
  detached->control.stop.caller = &detached->caller;
  if (run_options) detached->pool = run_options->thread_pool;
  if (observed)
    detached->control.observer = &detached->observer.emplace(*executable, run_options, request.monitor.get(), hooked.run_id, memory);
  call(detached->control, detached->caller, hooked,
       [this, run = detached, compiled = request.compiled] {
         compute(*run->executable, run->feeds, run->results, run->bound, run->control, run->memory);
         if (run->observer) run->control.stop.call([&] { run->observer->finish(compiled); });
       },
       {detached->feeds, detached->results});
  for (size_t k = 0; k < results.size(); ++k) {
    results[k] = std::move(detached->results[k]);
    if (k < request.bound.size() && is_lent(request.bound[k])) copy_to_bound(*executable, k, request.bound[k], results[k]);
  }
}

void add_output_memory(const Executable& executable, const RunOptions* run_options, std::vector<exec::OutputMemory>& memory) {
  if (!run_options || (run_options->output_allocators.empty() && run_options->output_devices.empty())) return;
  memory.resize(executable.output_names.size());
  for (size_t k = 0; k < executable.num_fetched; ++k) {
    const std::string& name = executable.output_names[k];
    const auto allocator = run_options->output_allocators.find(name);
    if (allocator != run_options->output_allocators.end()) memory[k].allocator = allocator->second;
    const auto device = run_options->output_devices.find(name);
    if (device != run_options->output_devices.end()) memory[k].device = device_named(device->second), memory[k].stays = false;
    if (memory[k].allocator && memory[k].device)
      throw Error(ErrorCode::invalid_argument, fmt::format("the output \"{}\" has an allocator and a device", name));
  }
}

}  // namespace treadle
