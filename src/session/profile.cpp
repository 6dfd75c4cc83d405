// Profiles of runs: of sessions, trainers and joint modules.
#include "treadle/profile.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <ctime>
#include <span>

#include "core/file.h"
#include "exec/program/binding.h"
#include "exec/program/profile_plan.h"
#include "passes/trace.h"
#include "profile/analysis.h"
#include "profile/memory_recording.h"
#include "profile/ranges.h"
#include "profile/trace_rows.h"
#include "session/profiling.h"
#include "session/session_impl.h"

namespace treadle {

Profiling::Profiling(const Runtime& runtime, const ProfilerOptions& options)
    : runtime_(runtime),
      names_passes_(options.passes),
      window_(Recorder::of_process(), {.max_records = options.max_events,
                                       .keep_last = options.keep_last,
                                       .memory = options.memory,
                                       .kernel_phases = options.kernel_phases}),
      memory_before_(runtime.memory.account->statistics()) {
  if (options.passes && !runtime.names_no_passes.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("profiles of {} name no passes: {}", runtime.name, runtime.names_no_passes));
  set(true);
}

Profiling::~Profiling() { set(false); }

void Profiling::set(bool on) {
  std::lock_guard lock(mutex_);
  if (on == on_) return;
  on_ = on;
  if (on) {
    runtime_.num_recording.fetch_add(1, std::memory_order_release);
    intervals_.emplace_back(read_ticks(), UINT64_MAX);
  } else {
    intervals_.back().second = read_ticks();
    runtime_.num_recording.fetch_sub(1, std::memory_order_release);
  }
}

bool Profiling::is_on() const {
  std::lock_guard lock(mutex_);
  return on_;
}

std::vector<std::pair<uint64_t, uint64_t>> Profiling::intervals() const {
  std::lock_guard lock(mutex_);
  return intervals_;
}

Profiler::Profiler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Profiler::Profiler(Profiler&&) noexcept = default;
Profiler& Profiler::operator=(Profiler&&) noexcept = default;
Profiler::~Profiler() = default;
void Profiler::pause() { impl_->profiling.set(false); }
void Profiler::resume() { impl_->profiling.set(true); }
Profile Profiler::profile() const { return impl_->take(impl_->profiling); }

uint64_t ProfileRange::begin() noexcept { return RecordWindow::any() ? read_ticks() : 0; }
uint32_t ProfileRange::name_id(std::string_view name) { return Recorder::of_process().intern(name); }
void ProfileRange::end(uint32_t name_id, uint64_t begin) noexcept {
  if (begin != 0) Recorder::of_process().record(name_id, RecordKind::user, begin, read_ticks());
}

ProfileRange::ProfileRange(std::string_view name) noexcept : start_(begin()) {
  if (start_ == 0) return;
  try {
    name_ = name_id(name);
    start_ = read_ticks();
  } catch (const std::exception&) {
    start_ = 0;  // no memory for the name
  }
}
ProfileRange::~ProfileRange() { end(name_, start_); }

void Runtime::start_profiling(const ProfilerOptions& profiler_options) {
  own_profiling.reset();  // what it has recorded is forgotten
  own_profiling = std::make_shared<Profiling>(*this, profiler_options);
}

Profiling& Runtime::profiling() const {
  if (!own_profiling) throw Error(ErrorCode::invalid_argument, "profiling was not started");
  return *own_profiling;
}

namespace {

// What loading consisted of: reading and making, then the first binding.
std::vector<LoadPhase> phases_of_load(const Runtime& runtime, const Runtime::Executables& executables) {
  std::vector<LoadPhase> phases = runtime.load.phases();
  const auto first = static_cast<int32_t>(phases.size());
  for (LoadPhase phase : executables.front()->program->first_binding().phases()) {
    if (phase.parent >= 0) phase.parent += first;
    phases.push_back(std::move(phase));
  }
  return phases;
}

// As a row of its own, if it is no more than a minute older than the profile: a trace of a server would begin with an empty day.
Recording::Thread row_of_load(const std::vector<LoadPhase>& phases, Recording& recording) {
  constexpr double kNearNs = 60e9;
  Recording::Thread row{static_cast<uint32_t>(recording.threads.size()), 0, "load", {}};
  if (phases.empty() || recording.to_ns(phases.front().start) < -kNearNs) return row;
  for (const LoadPhase& phase : phases) {
    row.records.push_back({phase.start, phase.end, 0, 0, static_cast<uint32_t>(recording.names.size()), RecordKind::compile, 0});
    recording.names.push_back({phase.name, {}, {}});
  }
  return row;
}

}  // namespace

Profile Runtime::traced(const Executables& executables, const Profiling& profiling) const {
  Profile profile;
  auto trace = std::make_shared<ProfileTrace>();
  std::unordered_map<uint32_t, int32_t> node_of;
  for (const auto& executable : executables) exec::add_profiled_nodes(*executable->program, -1, profile.nodes, node_of);
  RecordFilter filter{
      .from = profiling.window().start(), .account = memory.account.get(), .kernel_phases = profiling.window().limits().kernel_phases};
  auto add = [&](uint32_t record, std::string text) {
    filter.names.emplace(record, static_cast<uint32_t>(filter.texts.size()));
    filter.texts.push_back({std::move(text), {}, {}});
  };
  add(records.run, "run");
  add(records.initialization, "session_initialization");
  trace->run = 0;
  for (const auto& [record, node] : node_of) {
    trace->node_of.emplace(static_cast<uint32_t>(filter.texts.size()), node);
    const ProfiledNode& of = profile.nodes[static_cast<size_t>(node)];
    add(record, of.op_type + " " + of.name);
  }
  trace->recording = Recorder::of_process().collect(filter, profiling.window());
  if (profiling.window().limits().memory) profile::add_memory_counters(trace->recording, profiling.memory_before());
  const std::vector<LoadPhase> phases = phases_of_load(*this, executables);
  for (const LoadPhase& phase : phases)
    profile.load.push_back({.name = phase.name,
                            .parent = phase.parent,
                            .start_ns = static_cast<double>(phase.start - phases.front().start) * trace->recording.ns_per_tick,
                            .duration_ns = static_cast<double>(phase.end - phase.start) * trace->recording.ns_per_tick});
  trace->load = row_of_load(phases, trace->recording);
  trace->intervals = profiling.intervals();
  profile.trace = std::move(trace);
  return profile;
}

Profile Runtime::make_profile(const Executables& executables, const Profiling& profiling) const {
  Profile profile = traced(executables, profiling);
  const exec::Program& main = *executables.front()->program;
  for (size_t i = 0; i < profile.nodes.size() && profile.steps.size() < main.instructions().size(); ++i)
    if (profile.nodes[i].parent < 0) profile.steps.push_back(static_cast<int32_t>(i));
  const ProfileTrace& trace = *profile.trace;
  profile::analyse(trace.recording, {.run = trace.run, .node = trace.node_of, .intervals = trace.intervals}, profile);
  profile::add_ranges(trace, profile);
  profile.buffers = exec::profiled_buffers(main);
  if (const auto plan = main.bindings().latest_plan()) {
    profile.memory.arena_bytes = plan->arena_bytes;
    profile.memory.arena_lower_bound_bytes = plan->lower_bound_bytes;
    for (const ProfiledBuffer& buffer : profile.buffers) profile.memory.arena_sum_bytes += buffer.size_bytes;
  }
  profile.memory_statistics = memory.account->statistics();
  if (profiling.window().limits().memory) {
    std::vector<MemoryHolding> before;
    for (const auto& executable : executables) exec::add_held_weights(*executable->program, before);
    if (profile.memory.arena_bytes > 0) before.push_back({"arena", MemoryClass::activations, profile.memory.arena_bytes});
    profile.measured_memory = profile::measure_memory(trace, profiling.memory_before(), std::move(before));
  }
  profile.ns_per_event = profile::measure_ns_per_event();
  return profile;
}

std::string Runtime::end_profiling(const Executables& executables, TraceFormat format) {
  if (!own_profiling || !own_profiling->is_on()) throw Error(ErrorCode::invalid_argument, "profiling is not on");
  own_profiling->set(false);
  std::string path =
      fmt::format("{}{:%Y-%m-%d_%H-%M-%S}_{}.json", options.profile_file_prefix, fmt::localtime(std::time(nullptr)), getpid());
  const std::string text = profile_to_trace(traced(executables, *own_profiling), format);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
  return path;
}

Profile Session::Impl::profile(const Profiling& of) const {
  Profile profile;
  {
    std::lock_guard lock(mutex);
    profile = make_profile(compiled_now(), of);
  }
  profile.memory = memory_report();
  if (of.names_passes()) name_passes(profile);
  return profile;
}

// The passes once more, over the graph as read: sessions do not keep what they did.
void Session::Impl::name_passes(Profile& profile) const {
  passes::PassTrace trace;
  {
    const passes::PassTrace::Scope traced(trace);
    const std::unique_ptr<Graph> graph = prepare();
    optimise(*graph);
  }
  for (ProfiledNode& node : profile.nodes)
    node.passes = trace.passes_of(node.sources.empty() ? std::vector<std::string>{node.name} : node.sources);
}

void Session::start_profiling() {
  std::lock_guard lock(impl_->mutex);
  impl_->start_profiling({});
}

void Session::pause_profiling() {
  std::lock_guard lock(impl_->mutex);
  impl_->profiling().set(false);
}

void Session::resume_profiling() {
  std::lock_guard lock(impl_->mutex);
  impl_->profiling().set(true);
}

Profile Session::profile() const {
  std::shared_ptr<Profiling> of;
  {
    std::lock_guard lock(impl_->mutex);
    impl_->profiling();  // or there is none
    of = impl_->own_profiling;
  }
  return impl_->profile(*of);
}

Profiler Session::profiler(const ProfilerOptions& options) {
  auto take = [impl = impl_.get()](const Profiling& of) { return impl->profile(of); };
  return Profiler(std::unique_ptr<Profiler::Impl>(new Profiler::Impl{impl_, std::move(take), {*impl_, options}}));
}

std::string Session::end_profiling() {
  std::lock_guard lock(impl_->mutex);
  return impl_->end_profiling(impl_->compiled_now(), TraceFormat::onnxruntime);
}

}  // namespace treadle
