// Profiles of the runs of sessions, trainers and joint modules.
#include "treadle/profile.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <span>
#include <string_view>
#include <unordered_map>

#include "core/base/cpu_info.h"
#include "core/base/logging.h"
#include "core/files/file.h"
#include "exec/explain/profile_plan.h"
#include "exec/plan/plans.h"
#include "graph/op_def.h"
#include "graph/unused_kernels.h"
#include "passes/trace.h"
#include "profile/analysis/analysis.h"
#include "profile/analysis/profile_of.h"
#include "profile/recording/stream_file.h"
#include "session/device_rows.h"
#include "session/profiling.h"
#include "session/session_impl.h"

namespace treadle {

namespace {

// The phases of loading: reading the model, making the client and its further graphs, and each program's first binding.
std::vector<LoadPhase> phases_of_load(const Runtime& runtime, const Runtime::Executables& executables) {
  std::vector<LoadPhase> phases = runtime.load.phases();
  for (const auto& executable : executables) {
    const auto first = static_cast<int32_t>(phases.size());
    for (LoadPhase phase : executable->executor->plans().first_binding().phases()) {
      if (phase.parent >= 0) phase.parent += first;
      phases.push_back(std::move(phase));
    }
  }
  return phases;
}

}  // namespace

Profile recorded_profile(profile::ProfilePlan plan, const Profiling& profiling) {
  profile::PlanFilter filter = profile::filter_of(plan, profiling.window().start());
  Recording recording = Recorder::of_process().collect(filter.filter, profiling.window());
  profiling.note_read();
  return profile::profile_of(std::move(plan), std::move(recording), std::move(filter.node_of), profiling.intervals());
}

Profiling::Profiling(const Runtime& runtime, const ProfilerOptions& options)
    : runtime_(runtime),
      names_passes_(options.passes),
      window_(Recorder::of_process(), {.max_records = options.max_events,
                                       .keep_last = options.keep_last,
                                       .memory = options.memory,
                                       .kernel_phases = options.kernel_phases,
                                       .python_calls = options.python_calls,
                                       .streams = !options.stream_to.empty()}),
      memory_before_(runtime.memory.account->statistics()) {
  if (options.passes && !runtime.names_no_passes.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("profiles of {} name no passes: {}", runtime.name, runtime.names_no_passes));
  if (options.keep_last && !options.stream_to.empty())
    throw Error(ErrorCode::invalid_argument,
                "a profile that is written to a file keeps all of its events: keep_last does not go with stream_to");
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

Profiler::Impl::Impl(std::shared_ptr<const void> of, const Runtime& runtime, const ProfilerOptions& options, Plan make_plan,
                     profile::AwaitedFile ends)
    : owner(std::move(of)), plan(std::move(make_plan)), profiling(runtime, options) {
  if (options.stream_to.empty()) return;
  if (ends.is_over) ends.stop = [this] { profiling.set(false); };
  stream = std::make_unique<profile::StreamWriter>(
      options.stream_to, profiling.window(), [this] { return plan(profiling); }, [this] { return profiling.intervals(); }, std::move(ends));
}

Profiler::Profiler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Profiler::Profiler(Profiler&&) noexcept = default;
Profiler& Profiler::operator=(Profiler&&) noexcept = default;
Profiler::~Profiler() = default;
void Profiler::pause() { impl_->profiling.set(false); }
void Profiler::resume() { impl_->profiling.set(true); }

Profile Profiler::profile() const {
  if (!impl_->stream) return recorded_profile(impl_->plan(impl_->profiling), impl_->profiling);
  impl_->stream->flush();
  return profile::read_stream(impl_->stream->path());
}

void Profiler::flush() {
  if (impl_->stream) impl_->stream->flush();
}

Profile read_profile_recording(const std::string& path) { return profile::read_stream(path); }

void mark_profile(std::string_view name) noexcept {
  if (!RecordWindow::any()) return;
  try {
    Recorder::of_process().instant(ProfileRange::name_id(name));
  } catch (const std::exception&) {
    // If there is no memory for the name, the mark is not recorded.
  }
}

bool ProfileRange::is_recorded() noexcept { return RecordWindow::any(); }
uint64_t ProfileRange::begin() noexcept { return RecordWindow::any() ? read_ticks() : 0; }
uint32_t ProfileRange::name_id(std::string_view name) { return Recorder::of_process().intern(name); }
uint64_t ProfileRange::begin(uint32_t name_id) noexcept {
  if (!RecordWindow::any()) return 0;
  const uint64_t now = read_ticks();
  Recorder::of_process().begin(name_id, RecordKind::user, now);
  return now;
}
void ProfileRange::end(uint32_t name_id, uint64_t begin) noexcept {
  if (begin != 0) Recorder::of_process().record(name_id, RecordKind::user, begin, read_ticks());
}

void ProfileRange::end_call(uint32_t name_id, uint64_t begin, uint64_t end, int64_t system_thread) noexcept {
  if (begin == 0) return;
  if (system_thread == 0) return Recorder::of_process().record(name_id, RecordKind::python, begin, end);
  try {
    Recorder::of_process().record_for(system_thread, name_id, RecordKind::python, begin, end);
  } catch (const std::exception&) {
    // If there is no memory, the call is not recorded.
  }
}

void ProfileRange::call_is_open(uint32_t name_id, uint64_t begin, int64_t system_thread) noexcept {
  if (begin == 0) return;
  try {
    Recorder::of_process().begin_for(system_thread, name_id, RecordKind::python, begin);
  } catch (const std::exception&) {
    // If there is no memory, the call is not recorded.
  }
}

ProfileRange::ProfileRange(std::string_view name) noexcept : start_(0) {
  if (!is_recorded()) return;
  try {
    name_ = name_id(name);
    start_ = begin(name_);
  } catch (const std::exception&) {
    // If there is no memory for the name, the range does not begin, and ~ProfileRange() records nothing.
  }
}
ProfileRange::~ProfileRange() { end(name_, start_); }

void Runtime::start_profiling(const ProfilerOptions& profiler_options) {
  own_profiling.reset();  // discards the previous recording first
  own_profiling = std::make_shared<Profiling>(*this, profiler_options);
}

Profiling& Runtime::profiling() const {
  if (!own_profiling) throw Error(ErrorCode::invalid_argument, "profiling was not started");
  return *own_profiling;
}

profile::ProfilePlan Runtime::profile_plan(const Executables& executables, const Profiling& profiling) const {
  const RecordWindow::Limits& limits = profiling.window().limits();
  profile::ProfilePlan plan{.run = records.run,
                            .initialization = records.initialization,
                            .account = reinterpret_cast<uintptr_t>(memory.account.get()),
                            .memory = limits.memory,
                            .kernel_phases = limits.kernel_phases,
                            .python_calls = limits.python_calls,
                            .load = phases_of_load(*this, executables),
                            .memory_before = profiling.memory_before(),
                            .ns_per_event = profile::measure_ns_per_event()};
  Profile& profile = plan.profile;
  profile.cpu = cpu_info().model_name;
  profile.num_threads = intra_limit > 0 ? intra_limit : pool->num_threads();
  profile.float32 = options.precision.empty() || options.precision == "float32";
  for (const auto& executable : executables) exec::add_profiled_nodes(executable->executor->plans(), -1, profile.nodes, plan.node_of);
  const exec::Program& main = *executables.front()->program;
  for (size_t i = 0; i < profile.nodes.size() && profile.steps.size() < main.instructions().size(); ++i)
    if (profile.nodes[i].parent < 0) profile.steps.push_back(static_cast<int32_t>(i));
  for (const auto& executable : executables)
    for (const exec::DeviceCopy& copy : executable->executor->copies()) {
      plan.node_of.emplace(copy.record_name, static_cast<int32_t>(profile.nodes.size()));
      profile.nodes.push_back(exec::profiled_copy(executable->executor->plans(), copy.slot, copy.from, copy.to));
    }
  for (const auto& executable : executables) add_device_rows(*executable->executor, plan);
  exec::ProfiledArena arena = exec::profiled_arena(executables.front()->executor->plans());
  profile.buffers = std::move(arena.buffers);
  profile.memory.arena_bytes = arena.arena_bytes;
  profile.memory.arena_lower_bound_bytes = arena.lower_bound_bytes;
  for (const ProfiledBuffer& buffer : profile.buffers) profile.memory.arena_sum_bytes += buffer.size_bytes;
  profile.memory_statistics = memory.account->statistics();
  if (!limits.memory) return plan;
  for (const auto& executable : executables) exec::add_held_weights(*executable->program, plan.held);
  if (profile.memory.arena_bytes > 0) plan.held.push_back({"arena", MemoryClass::activations, profile.memory.arena_bytes});
  return plan;
}

std::string Runtime::end_profiling(const Executables& executables, TraceFormat format) {
  if (!own_profiling || !own_profiling->is_on()) throw Error(ErrorCode::invalid_argument, "profiling is not on");
  own_profiling->set(false);
  // The file name has ONNX Runtime's form, with a number added so that two files written in one second differ.
  static std::atomic<uint64_t> num_written{0};
  const std::string& prefix = options.profile_file_prefix;
  const uint64_t number = num_written.fetch_add(1);
  std::string path = fmt::format("{}{}{:%Y-%m-%d_%H-%M-%S}_{}{}.json", prefix, prefix.ends_with('_') ? "" : "_",
                                 fmt::localtime(std::time(nullptr)), getpid(), number > 0 ? fmt::format("_{}", number) : "");
  Profile profile = recorded_profile(profile_plan(executables, *own_profiling), *own_profiling);
  if (format == TraceFormat::onnxruntime) name_as_onnxruntime(profile.nodes);
  const std::string text = profile_to_trace(profile, format);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
  return path;
}

void Runtime::leave_profile(const Executables& executables, TraceFormat format) noexcept {
  if (!options.enable_profiling || !own_profiling || own_profiling->is_read()) return;
  try {
    own_profiling->set(true);  // turns profiling on even if it is paused
    end_profiling(executables, format);
  } catch (const std::exception& error) {
    TREADLE_LOG(warning, "the profile of {} could not be written: {}", name, error.what());
  }
}

profile::ProfilePlan Session::Impl::profile_plan(const Profiling& of) const {
  profile::ProfilePlan plan;
  {
    std::lock_guard lock(mutex);
    plan = Runtime::profile_plan(compiled_now(), of);
  }
  plan.profile.memory = memory_report();
  if (of.names_passes())
    name_passes(plan.profile, [&] {
      struct Optimized {
        std::unique_ptr<Graph> graph;
        CompiledSubgraphs compiled;  // subgraphs that the graph's nodes refer to
      };
      const auto made = std::make_shared<Optimized>(Optimized{prepare(), {}});
      made->compiled = optimize(*made->graph);
      return std::shared_ptr<const Graph>(made, made->graph.get());
    });
  return plan;
}

namespace {

using Children = std::unordered_map<int32_t, std::vector<int32_t>>;  // indices of profiled nodes, by their parent

Children children_of(const std::vector<ProfiledNode>& nodes) {
  Children children;
  for (size_t i = 0; i < nodes.size(); ++i) children[nodes[i].parent].push_back(static_cast<int32_t>(i));
  return children;
}

// Names nodes as onnxruntime does. @param graphs  the model's graphs that are the bodies of the profiled node `parent`
void name_by_position(const std::vector<const onnx::GraphDef*>& graphs, int32_t parent, const Children& children,
                      std::vector<ProfiledNode>& nodes) {
  std::unordered_map<std::string_view, std::pair<const onnx::NodeDef*, int>> named;  // nodes by name or, if they have none, by first output
  for (const onnx::GraphDef* graph : graphs) {
    int position = 0;
    for (const onnx::NodeDef& node : graph->nodes) {
      // Constants have no position in onnxruntime's numbering.
      if (node.outputs.empty() || (node.op_type == "Constant" && node.domain.empty())) continue;
      named.try_emplace(node.name.empty() ? node.outputs[0] : node.name, &node, position++);
    }
  }
  const auto found = children.find(parent);
  if (found == children.end()) return;
  for (int32_t i : found->second) {
    ProfiledNode& profiled = nodes[static_cast<size_t>(i)];
    const auto of = named.find(profiled.name);
    if (of == named.end()) continue;
    const auto [node, position] = of->second;
    std::vector<const onnx::GraphDef*> bodies;
    for (const onnx::AttributeDef& attribute : node->attributes)
      if (attribute.g) bodies.push_back(attribute.g.get());
    if (!bodies.empty()) name_by_position(bodies, i, children, nodes);
    if (node->name.empty()) profiled.name = fmt::format("{}_{}", profiled.op_type, position);
  }
}

// Finds, for each profiled node, the kernels that were not used. Names are unique only within one body, so the nodes of a body are compared
// with the bodies of the same parent node.
void find_unused_kernels(const std::vector<const Graph*>& graphs, int32_t parent, const Children& children,
                         std::vector<ProfiledNode>& nodes) {
  std::unordered_map<std::string_view, std::pair<const Graph*, const Node*>> named;
  for (const Graph* graph : graphs)
    for (NodeId id = graph->first(); id != kNoNode; id = graph->next(id)) named.try_emplace(graph->node(id).name, graph, &graph->node(id));
  const auto found = children.find(parent);
  if (found == children.end()) return;
  for (int32_t i : found->second) {
    ProfiledNode& profiled = nodes[static_cast<size_t>(i)];
    const auto of = named.find(profiled.name);
    if (of == named.end() || of->second.second->op_type != profiled.op_type || !of->second.second->op) continue;
    const auto& [graph, node] = of->second;
    if (!profiled.kernel.empty())
      for (UnusedKernel& unused : unused_kernels(*graph, *node, profiled.kernel))
        profiled.unused_kernels.push_back({std::move(unused.name), std::move(unused.why)});
    std::vector<const Graph*> bodies;
    for (const Body& body : node->bodies) bodies.push_back(body.graph.get());
    if (!bodies.empty()) find_unused_kernels(bodies, i, children, nodes);
  }
}

}  // namespace

void Session::Impl::name_as_onnxruntime(std::vector<ProfiledNode>& nodes) const {
  name_by_position({&model.impl().def.graph}, -1, children_of(nodes), nodes);
}

void name_passes(Profile& profile, const std::function<std::shared_ptr<const Graph>()>& optimize_again) {
  passes::PassTrace trace;
  std::shared_ptr<const Graph> graph;
  {
    const passes::PassTrace::Scope traced(trace);
    graph = optimize_again();
  }
  find_unused_kernels({graph.get()}, -1, children_of(profile.nodes), profile.nodes);
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
    impl_->profiling();  // throws if profiling was not started
    of = impl_->own_profiling;
  }
  return recorded_profile(impl_->profile_plan(*of), *of);
}

Profiler Session::profiler(const ProfilerOptions& options) {
  auto plan = [impl = impl_.get()](const Profiling& of) { return impl->profile_plan(of); };
  return Profiler(std::make_unique<Profiler::Impl>(impl_, *impl_, options, std::move(plan)));
}

std::string Session::end_profiling() {
  std::lock_guard lock(impl_->mutex);
  return impl_->end_profiling(impl_->compiled_now(), TraceFormat::onnxruntime);
}

}  // namespace treadle
