#include "treadle/session.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "exec/describe.h"
#include "graph/infer.h"
#include "graph/patch.h"
#include "onnx/export.h"
#include "onnx/import.h"
#include "onnx/serialize.h"
#include "passes/pipeline.h"
#include "profile/chrome_trace.h"
#include "session/session_impl.h"
#include "session/support.h"
#include "treadle/error.h"

namespace treadle {
namespace {

std::shared_ptr<Executable> make_executable(std::shared_ptr<const Graph> graph, const exec::ProgramOptions& options) {
  auto made = std::make_shared<Executable>();
  made->graph = graph;
  made->program = std::make_unique<exec::Program>(graph, options);
  for (ValueId input : graph->inputs) made->input_names.push_back(graph->value(input).name);
  made->output_names = graph->output_names;
  return made;
}

// Every symbolic extent of every input becomes a symbol of its own.
void separate_symbols(Graph& graph) {
  for (ValueId input : graph.inputs) {
    Type& type = graph.value(input).type;
    if (!type.is_tensor() || !type.shape) continue;
    for (Dim& dim : *type.shape)
      if (!dim.is_const()) dim = graph.symbols().fresh_symbol(to_string(dim), false);
  }
}

void override_dimensions(Graph& graph, const std::map<std::string, int64_t>& overrides) {
  for (ValueId input : graph.inputs) {
    Type& type = graph.value(input).type;
    if (!type.is_tensor() || !type.shape) continue;
    for (Dim& dim : *type.shape) {
      if (dim.is_const()) continue;
      if (auto found = overrides.find(to_string(dim)); found != overrides.end()) dim = Dim(found->second);
    }
  }
}

// The graph knows no denotations, so they are looked up in the model as read.
void override_denotations(Graph& graph, const onnx::ModelDef& def, const std::map<std::string, int64_t>& overrides) {
  for (const onnx::ValueInfoDef& input : def.graph.inputs) {
    if (!input.type.shape) continue;
    ValueId id = graph.find_value(input.name);
    if (id == kNoValue) continue;
    Type& type = graph.value(id).type;
    if (!type.is_tensor() || !type.shape || type.shape->size() != input.type.shape->size()) continue;
    for (size_t axis = 0; axis < type.shape->size(); ++axis) {
      auto found = overrides.find((*input.type.shape)[axis].denotation);
      if (found != overrides.end() && !(*type.shape)[axis].is_const()) (*type.shape)[axis] = Dim(found->second);
    }
  }
}

// True if a feed of type `fed` breaks what the model declares by itself, symbols apart.
bool contradicts(const Type& declared, const Type& fed) {
  if (declared.kind == Type::Kind::unknown) return false;
  if (declared.kind != fed.kind || (declared.dtype != DType::undefined && declared.dtype != fed.dtype)) return true;
  if (!declared.shape || !fed.shape) return false;
  if (declared.shape->size() != fed.shape->size()) return true;
  for (size_t axis = 0; axis < fed.shape->size(); ++axis) {
    const Dim& dim = (*declared.shape)[axis];
    if (dim.is_const() && dim.value() != (*fed.shape)[axis].value()) return true;
  }
  return false;
}

size_t packed_bytes(const exec::Program& program) {
  size_t bytes = 0;
  for (const exec::Instruction& instruction : program.instructions()) {
    if (instruction.packed) bytes += instruction.packed->size_bytes();
    for (const auto& body : instruction.bodies) bytes += packed_bytes(*body);
  }
  return bytes;
}

size_t weight_bytes(const Graph& graph) {
  size_t bytes = 0;
  for (size_t i = 0; i < graph.num_values(); ++i) {
    const Tensor* constant = graph.stored_tensor(ValueId{static_cast<uint32_t>(i)});
    if (constant && !graph.value(ValueId{static_cast<uint32_t>(i)}).uses.empty()) bytes += constant->size_bytes();
  }
  return bytes;
}

}  // namespace

std::unique_ptr<Graph> Session::Impl::prepare(std::span<const std::string> overridden) const {
  std::unique_ptr<Graph> graph = model.impl().import();
  if (!onnx::list_unsupported(*graph).empty())
    throw Error(ErrorCode::not_implemented,
                fmt::format("this build cannot run the model; it lacks:\n    {}", fmt::join(find_unsupported(model.impl()), "\n    ")));
  for (const auto& [name, tensor] : options.initializers) {
    ValueId id = graph->find_value(name);
    if (id == kNoValue || !graph->value(id).is_constant())
      throw Error(ErrorCode::not_found, fmt::format("the model has no initializer \"{}\"", name));
    graph->value(id).constant = tensor;
    graph->value(id).type = Type::of(tensor);
  }
  for (const std::string& name : overridden) {
    ValueId id = graph->find_value(name);
    Value& value = graph->value(id);
    value.kind = Value::Kind::input;
    value.constant = Datum();
    graph->inputs.push_back(id);
  }
  if (!options.strict_symbols) separate_symbols(*graph);
  override_dimensions(*graph, options.free_dimension_overrides);
  if (!options.denotation_overrides.empty()) override_denotations(*graph, model.impl().def, options.denotation_overrides);
  try {
    onnx::upgrade(*graph, {.warn = options.on_warning});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_implemented) throw;
    // Not the first thing that is missing, but all of them.
    std::vector<std::string> lines = find_unsupported(model.impl());
    throw Error(ErrorCode::not_implemented, lines.size() < 2 ? error.what() : fmt::format("{}", fmt::join(lines, "\n")));
  }
  return graph;
}

void Session::Impl::optimise(Graph& graph) const {
  if (options.graph_optimization_level == GraphOptimizationLevel::disable_all) return passes::canonicalise(graph);
  passes::PipelineOptions pipeline;
  pipeline.training = options.mode == SessionMode::training;
  pipeline.skip = options.disabled_passes;
  pipeline.max_patches = options.max_patches;
  pipeline.log = options.on_pass;
  pipeline.warn = options.on_warning;
  passes::optimize(graph, pipeline);
}

Session::Impl::Impl(const Model& source, const SessionOptions& session_options) : model(source), options(session_options) {
  pool = options.intra_op_num_threads == 0 ? ThreadPool::shared() : std::make_shared<ThreadPool>(options.intra_op_num_threads);
  uint64_t start = read_ticks();
  std::unique_ptr<Graph> graph = prepare({});
  optimise(*graph);
  if (!options.optimized_model_filepath.empty())
    onnx::write_model_file(onnx::export_model(*graph, &model.impl().def), options.optimized_model_filepath);
  auto made = make_executable(std::move(graph), program_options());
  if (options.enable_profiling) {
    recorder = std::make_unique<Recorder>();
    run_record = recorder->intern("run");
    recorder->record(recorder->intern("session_initialization"), RecordKind::compile, start, read_ticks());
    made->program->name_records(*recorder);
    profiling = true;
  }
  main = std::move(made);
  for (const std::string& name : main->input_names) known_inputs.emplace(name, known_inputs.size());
  for (const ValueInfo& info : model.overridable_initializers()) known_inputs.emplace(info.name, known_inputs.size());
}

std::shared_ptr<const Executable> Session::Impl::executable(std::span<const std::string> outputs,
                                                            std::span<const std::string> overridden) const {
  bool all = outputs.empty() || std::equal(outputs.begin(), outputs.end(), main->output_names.begin(), main->output_names.end());
  if (all && overridden.empty()) return main;
  std::string key = fmt::format("{}\n\n{}", fmt::join(outputs, "\n"), fmt::join(overridden, "\n"));
  std::lock_guard lock(mutex);
  auto found = std::find_if(others.begin(), others.end(), [&](const auto& entry) { return entry.first == key; });
  if (found != others.end()) {
    others.splice(others.begin(), others, found);
    return found->second;
  }
  std::unique_ptr<Graph> graph;
  if (overridden.empty()) {
    graph = main->graph->clone();
  } else {
    graph = prepare(overridden);
    optimise(*graph);
  }
  if (!all) {
    std::vector<ValueId> values;
    std::vector<std::string> names;
    for (const std::string& name : outputs) {
      auto position = std::find(graph->output_names.begin(), graph->output_names.end(), name);
      if (position == graph->output_names.end())
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("there is no output \"{}\"; the outputs are: {}", name, fmt::join(main->output_names, ", ")));
      values.push_back(graph->outputs[static_cast<size_t>(position - graph->output_names.begin())]);
      names.push_back(name);
    }
    graph->outputs = std::move(values);
    graph->output_names = std::move(names);
    remove_dead_nodes(*graph);
    std::erase_if(graph->inputs, [&](ValueId input) { return graph->value(input).uses.empty() && !graph->is_output(input); });
  }
  others.emplace_front(std::move(key), make_executable(std::move(graph), program_options()));
  if (others.size() > kMaxExecutables) others.pop_back();
  return others.front().second;
}

exec::RunControl Session::Impl::control(const RunOptions* run_options) const {
  exec::RunControl control;
  control.pool = pool->num_threads() > 1 ? pool.get() : nullptr;
  if (profiling.load(std::memory_order_relaxed)) control.recorder = recorder.get();
  control.run_id = num_runs.fetch_add(1, std::memory_order_relaxed);
  if (run_options) {
    control.cancel = &run_options->terminate;
    if (run_options->deadline_ms > 0)
      control.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(run_options->deadline_ms);
  }
  return control;
}

void Session::Impl::explain(const Executable& failed, std::span<const Datum> feeds, const Error& error) const {
  if (!error.context().empty() || error.code() != ErrorCode::invalid_argument) throw error;
  std::vector<std::string> overridden;
  for (const std::string& name : failed.input_names)
    if (std::find(main->input_names.begin(), main->input_names.end(), name) == main->input_names.end()) overridden.push_back(name);
  std::unique_ptr<Graph> graph = model.impl().import();
  for (ValueId input : graph->inputs) {
    auto position = std::find(failed.input_names.begin(), failed.input_names.end(), graph->value(input).name);
    if (position == failed.input_names.end()) continue;
    const Datum& feed = feeds[static_cast<size_t>(position - failed.input_names.begin())];
    if (!feed.defined()) continue;
    Type& declared = graph->value(input).type;
    Type fed = Type::of(feed);
    if (contradicts(declared, fed)) throw error;  // it names the feed; a node could not say more
    declared = std::move(fed);
  }
  onnx::upgrade(*graph);  // throws with the node's name, if a node is to blame
  throw error;
}

Session::Session(const Model& model, const SessionOptions& options) : impl_(std::make_unique<Impl>(model, options)) {}
Session::Session(const std::string& path, const SessionOptions& options)
    : Session(Model::load(path, {.use_mmap = options.use_mmap}), options) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

namespace {

/// Feeds in the order of an executable's inputs.
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

}  // namespace

std::vector<Datum> Session::run(const std::map<std::string, Datum>& feeds, std::span<const std::string> outputs,
                                const RunOptions* options) const {
  std::vector<std::string> overridden;
  for (const auto& [name, value] : feeds) {
    auto found = impl_->known_inputs.find(name);
    if (found == impl_->known_inputs.end())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("there is no input \"{}\"; the inputs are: {}", name, fmt::join(impl_->main->input_names, ", ")));
    if (found->second >= impl_->main->input_names.size()) overridden.push_back(name);
  }
  std::shared_ptr<const Executable> executable = impl_->executable(outputs, overridden);
  std::vector<Datum> arranged = arrange(*executable, feeds);
  std::vector<Datum> results(executable->output_names.size());
  exec::RunControl control = impl_->control(options);
  try {
    RecordScope scope(control.recorder, impl_->run_record, RecordKind::run);
    exec::run(*executable->program, arranged, results, control);
  } catch (const Error& error) {
    impl_->explain(*executable, arranged, error);
  }
  return results;
}

std::future<std::vector<Datum>> Session::run_async(std::map<std::string, Datum> feeds, std::vector<std::string> outputs) const {
  return std::async(std::launch::async, [this, feeds = std::move(feeds), outputs = std::move(outputs)] { return run(feeds, outputs); });
}

const Model& Session::model() const { return impl_->model; }
const SessionOptions& Session::options() const { return impl_->options; }
std::vector<ValueInfo> Session::inputs() const { return impl_->model.inputs(); }
std::vector<ValueInfo> Session::outputs() const { return impl_->model.outputs(); }
std::vector<ValueInfo> Session::overridable_initializers() const { return impl_->model.overridable_initializers(); }

std::string Session::to_text(std::string_view stage) const {
  if (stage == "onnx") return print(*impl_->model.impl().import());
  if (stage == "optimised") return print(*impl_->main->graph);
  if (stage == "planned") return exec::describe(*impl_->main->program);
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no stage \"{}\"; the stages are onnx, optimised and planned", stage));
}

MemoryReport Session::memory() const {
  MemoryReport report;
  const exec::Program& program = *impl_->main->program;
  report.weight_bytes = weight_bytes(*impl_->main->graph);
  report.packed_bytes = packed_bytes(program);
  if (auto plan = program.bindings().latest_plan()) {
    report.arena_bytes = plan->arena_bytes;
    report.arena_lower_bound_bytes = plan->lower_bound_bytes;
  }
  return report;
}

std::string Session::end_profiling() {
  if (!impl_->profiling.exchange(false)) throw Error(ErrorCode::invalid_argument, "profiling is not on");
  std::string path =
      fmt::format("{}{:%Y-%m-%d_%H-%M-%S}_{}.json", impl_->options.profile_file_prefix, fmt::localtime(std::time(nullptr)), getpid());
  profile::write_chrome_trace(impl_->recorder->collect(), path);
  return path;
}

int64_t Session::profiling_start_ns() const { return impl_->recorder ? impl_->recorder->collect().start_unix_ns : 0; }

std::string_view version() { return TREADLE_VERSION; }

// Partial runs.

struct PartialRun::Impl {
  std::shared_ptr<const Executable> executable;
  std::unique_ptr<exec::Frame> frame;
};

PartialRun::PartialRun(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PartialRun::~PartialRun() = default;
PartialRun::PartialRun(PartialRun&&) noexcept = default;
PartialRun& PartialRun::operator=(PartialRun&&) noexcept = default;

PartialRun Session::partial_run(const std::map<std::string, Datum>& feeds) const {
  auto run = std::make_unique<PartialRun::Impl>();
  run->executable = impl_->main;
  run->frame = std::make_unique<exec::Frame>(*run->executable->program);
  std::vector<Datum> arranged = arrange(*run->executable, feeds);
  try {
    run->frame->start(arranged, {}, impl_->control(nullptr));
  } catch (const Error& error) {
    impl_->explain(*run->executable, arranged, error);
  }
  return PartialRun(std::move(run));
}

bool PartialRun::advance() { return impl_->frame->advance(); }
bool PartialRun::finished() const { return impl_->frame->finished(); }

std::vector<std::pair<std::string, Datum>> PartialRun::yielded() const {
  if (finished()) throw Error(ErrorCode::invalid_argument, "the run is at its end, not at a Yield");
  std::vector<Datum> values = impl_->frame->yielded();
  const Node& node = *impl_->frame->yield().node;
  std::vector<std::pair<std::string, Datum>> named;
  for (size_t i = 0; i < values.size(); ++i)
    named.emplace_back(node.has_input(i) ? impl_->executable->graph->value(node.inputs[i]).name : "", std::move(values[i]));
  return named;
}

bool PartialRun::resume(std::span<const Datum> values) {
  if (finished()) throw Error(ErrorCode::invalid_argument, "the run is at its end, not at a Yield");
  impl_->frame->resume(values);
  return impl_->frame->advance();
}

std::vector<Datum> PartialRun::outputs() {
  if (!finished()) throw Error(ErrorCode::invalid_argument, "the run is not at its end");
  std::vector<Datum> results(impl_->executable->output_names.size());
  impl_->frame->take_outputs(results);
  return results;
}

}  // namespace treadle
