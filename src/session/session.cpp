#include "treadle/session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/checked.h"
#include "core/base/fault.h"
#include "core/values/boolean_bytes.h"
#include "exec/explain/describe.h"
#include "exec/program/load_shortage.h"
#include "exec/run/frame.h"
#include "graph/infer.h"
#include "graph/type_text.h"
#include "memory/planner.h"
#include "onnx/export.h"
#include "onnx/import.h"
#include "onnx/serialize.h"
#include "onnx/unnamed.h"
#include "passes/infer_storage.h"
#include "passes/pipeline.h"
#include "passes/trace.h"
#include "session/log.h"
#include "session/options.h"
#include "session/refusals.h"
#include "session/run_names.h"
#include "session/session_impl.h"
#include "session/sparse_outputs.h"
#include "session/support.h"
#include "treadle/error.h"

namespace treadle {
namespace {

// Makes every symbolic extent of every input a separate symbol. An input that is declared without axes may be of any rank.
void separate_symbols(Graph& graph) {
  for (ValueId input : graph.inputs) {
    Type& type = graph.value(input).type;
    if (!type.is_tensor() || !type.shape) continue;
    if (type.shape->empty()) type.shape.reset();
    if (!type.shape) continue;
    for (Dim& dim : *type.shape)
      if (!dim.is_const()) dim = graph.symbols().fresh_symbol(to_string(dim), false);
  }
}

// Returns the override for this name; null if there is none. An unnamed extent has no override.
const int64_t* extent_for(const std::string& name, const std::map<std::string, int64_t>& overrides) {
  const auto found = name.empty() ? overrides.end() : overrides.find(name);
  return found != overrides.end() ? &found->second : nullptr;
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

// Denotations are read from the model's definition, as the graph does not keep them.
void override_denotations(Graph& graph, const onnx::ModelDef& def, const std::map<std::string, int64_t>& overrides) {
  for (const onnx::ValueInfoDef& input : def.graph.inputs) {
    if (!input.type.shape) continue;
    ValueId id = graph.find_value(input.name);
    if (id == kNoValue) continue;
    Type& type = graph.value(id).type;
    if (!type.is_tensor() || !type.shape || type.shape->size() != input.type.shape->size()) continue;
    for (size_t axis = 0; axis < type.shape->size(); ++axis) {
      const int64_t* extent = extent_for((*input.type.shape)[axis].denotation, overrides);
      if (extent && !(*type.shape)[axis].is_const()) (*type.shape)[axis] = Dim(*extent);
    }
  }
}

void override_denotations(ValueInfo& value, const onnx::ValueInfoDef& input, const std::map<std::string, int64_t>& overrides) {
  for (size_t axis = 0; input.type.shape && axis < value.shape.size(); ++axis) {
    const int64_t* extent = extent_for((*input.type.shape)[axis].denotation, overrides);
    if (extent && std::holds_alternative<std::string>(value.shape[axis])) value.shape[axis] = *extent;
  }
}

// True if a feed's kind, dtype, rank or constant extents differ from what the model declares. Symbolic extents are not compared.
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

size_t weight_bytes(const Graph& graph, std::set<const void*>& seen) {
  size_t bytes = 0;
  for (size_t i = 0; i < graph.num_values(); ++i) {
    const Value& value = graph.value(ValueId{static_cast<uint32_t>(i)});
    if (!value.is_constant() || value.uses.empty() || !value.type.is_static() || value.type.dtype == DType::string) continue;
    // The size comes from the type, because the constant may have been packed and released. Bodies may share constants with outer graphs.
    if (value.constant.is_tensor() && !seen.insert(value.constant.tensor().raw()).second) continue;
    bytes += size_bytes(value.type.dtype, value.type.static_shape().num_elements());
  }
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id))
    for (const Body& body : graph.node(id).bodies) bytes += weight_bytes(*body.graph, seen);
  return bytes;
}

// Rejects an output that is declared with a wrong dtype, because callers allocate memory by the declaration.
void check_declared_outputs(const Graph& graph) {
  for (size_t i = 0; i < std::min(graph.outputs.size(), graph.declared_outputs.size()); ++i) {
    const Type &declared = graph.declared_outputs[i], &made = graph.type(graph.outputs[i]);
    if (declared.is_tensor() && made.is_tensor() && declared.dtype != DType::undefined && made.dtype != DType::undefined &&
        declared.dtype != made.dtype)
      throw Fault(Fault::Kind::operand_type, ErrorCode::invalid_model,
                  fmt::format("the output \"{}\" is declared {}, but is {}", graph.output_names[i], to_string(declared), to_string(made)));
  }
}

}  // namespace

std::unique_ptr<Graph> Session::Impl::prepare(const std::function<void(Graph&)>& edit, bool own_symbols) const {
  std::unique_ptr<Graph> graph;
  {
    const LoadPhases::Phase phase("import");
    graph = model.impl().import();
  }
  if (!onnx::list_unsupported(*graph).empty())
    throw Error(ErrorCode::not_implemented,
                fmt::format("this build cannot run the model; it lacks:\n    {}", fmt::join(find_unsupported(model.impl()), "\n    ")));
  for (const auto& [name, tensor] : options.initializers) {
    ValueId id = graph->find_value(name);
    if (id == kNoValue || !graph->value(id).is_constant())
      throw Error(ErrorCode::not_found, fmt::format("the model has no initializer \"{}\"", name));
    graph->value(id).constant = with_valid_booleans(tensor);
    graph->value(id).type = Type::of(tensor);
  }
  if (edit) edit(*graph);
  override_dimensions(*graph, options.free_dimension_overrides);
  if (!options.denotation_overrides.empty()) override_denotations(*graph, model.impl().def, options.denotation_overrides);
  if (own_symbols) separate_symbols(*graph);
  const LoadPhases::Phase phase("upgrade and inference");
  try {
    onnx::upgrade(*graph, {.warn = options.on_warning});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_implemented) throw;
    // Reports all unsupported parts of the model, not only the first.
    std::vector<std::string> lines = find_unsupported(model.impl());
    if (lines.size() < 2) throw;
    throw Error(ErrorCode::not_implemented, fmt::format("{}", fmt::join(lines, "\n")));
  }
  check_declared_outputs(*graph);
  return graph;
}

Session::Impl::CompiledSubgraphs Session::Impl::optimize(Graph& graph, bool for_file, bool for_monitor) const {
  const LoadPhases::Phase phase("optimise");
  if (devices.have_kernels() && !options.precision.empty()) refuse("a device with kernels of its own", "precision");
  CompiledSubgraphs compiled;
  // Sparse storage is inferred for sessions only; files keep inputs dense.
  if (auto given = options.config.find("treadle.storage"); given != options.config.end() && !for_file)
    passes::infer_storage(graph, passes::parse_storage(given->second), options.on_warning);
  const bool has_backends = !for_file && !for_monitor && options.config.contains("treadle.backends");
  auto partition = [&](Graph& simplified, int64_t limit) {
    plugin::PartitionOptions partitioning{.backends = options.config.at("treadle.backends"),
                                          .training = options.mode == SessionMode::training,
                                          .device_of = [this](const Node& node) { return devices.name_for(node); }};
    if (options.on_pass) partitioning.log = [&](std::string_view backend, const std::string& what) { options.on_pass(backend, what, 0); };
    compiled = plugin::partition(simplified, partitioning, limit);
    return static_cast<int64_t>(compiled.size());
  };
  if (options.graph_optimization_level == GraphOptimizationLevel::disable_all) {
    passes::canonicalize(graph);
    if (has_backends) partition(graph, options.max_patches);
    return compiled;
  }
  passes::PipelineOptions pipeline;
  pipeline.weights_change = pipeline.before_autodiff = options.mode == SessionMode::training;
  pipeline.skip = options.disabled_passes;
  pipeline.max_patches = options.max_patches;
  pipeline.level = optimizer_level(options.graph_optimization_level);
  const std::optional<passes::DeviceForms> forms = for_file ? std::nullopt : devices.forms(graph);
  if (forms) pipeline.device = &*forms;
  pipeline.for_file = pipeline.keep_patterns = pipeline.keep_quantization = for_file;
  if (!for_file) pipeline.precision = passes::PrecisionRules::parse(options.precision);
  // Patterns are checked once, on the main program; programs for other fetches have fewer nodes.
  const bool checks_patterns = !for_file && !main && names_nodes(options.precision);
  std::vector<std::string> nodes;
  if (checks_patterns) add_nodes(graph, nodes);
  if (!for_file) {
    pipeline.conv_choice.max_weight_expansion = options.max_weight_expansion;
    if (!options.conv_rates.empty()) pipeline.conv_choice.rates = passes::read_conv_rates(options.conv_rates);
  }
  if (has_backends) pipeline.before_fusion = partition;
  pipeline.log = options.on_pass;
  pipeline.warn = options.on_warning;
  try {
    if (log_enabled(LogLevel::verbose, LogCategory::fusion) && !passes::PassTrace::current()) {
      passes::PassTrace trace;
      const passes::PassTrace::Scope scope(trace);
      passes::optimize(graph, pipeline);
      log_refusals(*this, trace);
    } else {
      passes::optimize(graph, pipeline);
    }
  } catch (const OutOfMemory&) {
    exec::rethrow_with_graph(graph);
  }
  if (checks_patterns) {
    add_nodes(graph, nodes);
    check_precision_patterns(options.precision, nodes);
  }
  return compiled;
}

std::shared_ptr<ThreadPool> make_thread_pool(int num_threads) {
  if (num_threads < 0) throw Error(ErrorCode::invalid_argument, fmt::format("a pool of {} threads", num_threads));
  return std::make_shared<ThreadPool>(num_threads);
}

Session::Impl::Impl(const Model& source, const SessionOptions& session_options) : Runtime(session_options, "the session"), model(source) {
  const Making scope(*this, source);
  const uint64_t start = read_ticks();
  if (source.impl().compiled) names_no_passes = "a compiled model holds the optimised graph only";
  making(name, [&] { make(); });
  if (own_profiling) Recorder::of_process().record(records.initialization, RecordKind::compile, start, read_ticks());
  sparse_outputs = treadle::sparse_outputs(model);
  for (const std::string& input : main->input_names) known_inputs.emplace(input, known_inputs.size());
  for (const ValueInfo& info : model.overridable_initializers()) known_inputs.emplace(info.name, known_inputs.size());
  enlist(model, [this] { trim(); });
}

void Session::Impl::make() {
  if (!model.impl().compiled) check_symbols(model, options);
  if (!options.optimized_model_filepath.empty())
    onnx::write_model_file(optimized(), options.optimized_model_filepath,
                           onnx::beside_optimized(options.optimized_model_data_file,
                                                  static_cast<size_t>(std::max<int64_t>(options.optimized_model_data_threshold, 0))));
  devices.read_groups(model);
  main = make_main();
  if (devices.any() && log_enabled(LogLevel::info, LogCategory::placement)) log_placement(*this, devices.list_nodes(*main->program));
  try {
    weight_charges.emplace_back(memory.account, MemoryClass::weights, main->program->weights().foreign_constant_bytes());
    weight_charges.emplace_back(memory.account, MemoryClass::packed, main->program->weights().foreign_packed_bytes());
  } catch (const OutOfMemory&) {
    exec::rethrow_with_graph(*main->graph, "while weights of the model were charged");
  }
}

onnx::ModelDef Session::Impl::optimized() const {
  std::unique_ptr<Graph> graph = prepare();
  optimize(*graph, /*for_file=*/true);
  onnx::ModelDef made = onnx::export_model(*graph, &model.impl().def, {.opset = onnx::kModelsOpset});
  if (!model.impl().compiled) onnx::remove_made_names(made.graph, model.impl().def.graph);
  return made;
}

Session::Impl::~Impl() {
  delist();
  leave_profile(compiled_now(), TraceFormat::onnxruntime);
  main.reset();
  others.clear();
  weight_charges.clear();
}

void Session::Impl::explain(const Executable& failed, std::span<const Datum> feeds, const Error& error) const {
  if (!error.context().empty() || error.code() != ErrorCode::invalid_argument || model.impl().compiled) throw;
  std::unique_ptr<Graph> graph = model.impl().import();
  for (ValueId input : graph->inputs) {
    const size_t position = position_of(failed.input_names, graph->value(input).name);
    if (position == failed.input_names.size() || !feeds[position].defined()) continue;
    Type& declared = graph->value(input).type;
    Type fed = Type::of(feeds[position]);
    if (contradicts(declared, fed)) throw;  // `error` names the feed, so it is clear enough
    declared = std::move(fed);
  }
  onnx::upgrade(*graph);  // if a node rejects the feeds, this throws an error that names it
  throw;
}

Session::Session(const Model& model, const SessionOptions& options) : impl_(std::make_shared<Impl>(model, options)) {}
Session::Session(const std::string& path, const SessionOptions& options) : Session(load_model(path, reading_options(options)), options) {}
Session::~Session() {
  if (impl_) impl_->in_flight->close(-1);
}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&& other) noexcept {
  if (this == &other) return *this;
  if (impl_) impl_->in_flight->close(-1);
  impl_ = std::move(other.impl_);
  return *this;
}

const Model& Session::model() const { return impl_->model; }
const SessionOptions& Session::options() const { return impl_->options; }
namespace {

// Replaces symbols by the extents that the options give them.
std::vector<ValueInfo> overridden(std::vector<ValueInfo> values, const std::map<std::string, int64_t>& extents) {
  for (ValueInfo& value : values)
    for (auto& extent : value.shape)
      if (const auto* symbol = std::get_if<std::string>(&extent))
        if (const int64_t* given = extent_for(*symbol, extents)) extent = *given;
  return values;
}

std::set<std::string, std::less<>> symbols_of(const std::vector<ValueInfo>& values) {
  std::set<std::string, std::less<>> symbols;
  for (const ValueInfo& value : values)
    for (const auto& extent : value.shape)
      if (const auto* symbol = std::get_if<std::string>(&extent); symbol && !symbol->empty()) symbols.insert(*symbol);
  return symbols;
}

// Adds to an output's declaration what inference knows in addition: type, rank, constant extents, symbols.
// @param symbols  symbols of the model's inputs; symbols that inference made are not added, as users do not know them
void add_inferred(ValueInfo& value, const Type& inferred, const std::set<std::string, std::less<>>& symbols) {
  if (value.type.empty()) value.type = type_text(inferred), value.dtype = inferred.dtype;
  if (!inferred.is_tensor() || !inferred.shape) return;
  if (!value.has_rank) value.shape.assign(inferred.shape->size(), std::string()), value.has_rank = true;
  if (value.shape.size() != inferred.shape->size()) return;
  for (size_t axis = 0; axis < value.shape.size(); ++axis) {
    auto* declared = std::get_if<std::string>(&value.shape[axis]);
    if (!declared) continue;
    const Dim& extent = (*inferred.shape)[axis];
    if (extent.is_const())
      value.shape[axis] = extent.value();
    else if (declared->empty() && extent.expr()->kind == Expr::Kind::symbol && symbols.contains(extent.expr()->symbol))
      *declared = extent.expr()->symbol;
  }
}

}  // namespace

std::vector<ValueInfo> Session::Impl::declared_inputs() const {
  std::vector<ValueInfo> values = overridden(model.inputs(), options.free_dimension_overrides);
  if (options.denotation_overrides.empty() || model.impl().compiled) return values;
  for (const onnx::ValueInfoDef& input : model.impl().def.graph.inputs)
    for (ValueInfo& value : values)
      if (value.name == input.name) override_denotations(value, input, options.denotation_overrides);
  return values;
}
std::vector<ValueInfo> Session::Impl::declared_outputs(const Graph& graph) const {
  std::vector<ValueInfo> values = overridden(model.outputs(), options.free_dimension_overrides);
  std::set<std::string, std::less<>> symbols = symbols_of(values);
  symbols.merge(symbols_of(declared_inputs()));
  for (ValueInfo& value : values)
    if (const size_t k = position_of(graph.output_names, value.name); k < graph.outputs.size())
      add_inferred(value, graph.type(graph.outputs[k]), symbols);
  return values;
}
std::vector<ValueInfo> Session::Impl::declared_initializers() const {
  return overridden(model.overridable_initializers(), options.free_dimension_overrides);
}

std::vector<ValueInfo> Session::inputs() const { return impl_->declared_inputs(); }
std::vector<ValueInfo> Session::outputs() const { return impl_->declared_outputs(*impl_->main->graph); }
std::vector<ValueInfo> Session::overridable_initializers() const { return impl_->declared_initializers(); }

std::string Session::to_text(std::string_view stage) const {
  if (stage == "onnx") return print(*impl_->model.impl().import());
  if (stage == "optimized") return print(*impl_->main->graph);
  if (stage == "planned")
    return exec::describe(impl_->main->executor->plans()) + (impl_->devices.any() ? impl_->devices.describe(*impl_->main->program) : "");
  if (stage == "devices") return impl_->devices.list_nodes(*impl_->main->program);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no stage \"{}\"; the stages are onnx, optimized, planned and devices", stage));
}

std::string Session::optimized_model() const {
  if (impl_->options.graph_optimization_level == GraphOptimizationLevel::disable_all && !impl_->model.impl().compiled)
    return onnx::serialize_model(impl_->model.impl().def);
  return onnx::serialize_model(impl_->optimized());
}

MemoryReport Session::memory() const { return impl_->memory_report(); }

MemoryReport Session::Impl::memory_report() const {
  MemoryReport report;
  const exec::Program& program = *main->program;
  std::set<const void*> seen;
  report.weight_bytes = weight_bytes(*main->graph, seen);
  report.packed_bytes = packed_bytes(program);
  if (auto plan = main->executor->plans().bindings().latest_plan()) {
    report.arena_bytes = plan->arena_bytes;
    report.arena_lower_bound_bytes = plan->lower_bound_bytes;
    std::vector<memory::Buffer> buffers;
    for (exec::BufferId b : plan->sizes.ids()) {
      const auto& [slot, instruction, first, last] = program.buffers()[b];
      buffers.push_back({plan->sizes[b], static_cast<int32_t>(first), static_cast<int32_t>(last) + 1});
      report.arena_sum_bytes += align_up(plan->sizes[b], Storage::kAlignment);
    }
    std::vector<exec::BufferId> touched;
    for (const exec::Instruction& instruction : program.instructions()) {
      touched.assign(1, instruction.scratch_buffer);
      for (exec::SlotId operand : program.operands(instruction))
        touched.push_back(operand == exec::kNoSlot ? exec::kNoBuffer : program.slots()[operand].buffer);
      std::sort(touched.begin(), touched.end());
      touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
      size_t bytes = 0;
      for (exec::BufferId buffer : touched)
        if (buffer != exec::kNoBuffer) bytes += align_up(plan->sizes[buffer], Storage::kAlignment);
      report.largest_node_bytes = std::max(report.largest_node_bytes, bytes);
    }
    report.arena_in_order_bytes = memory::best_fit_in_order_bytes(buffers, Storage::kAlignment);
  }
  return report;
}

void Session::Impl::trim() const {
  std::unique_lock lock(mutex, std::try_to_lock);  // if another thread has locked it, only the main program is trimmed
  if (!lock) return main->executor->frames().trim_all();
  for (const auto& executable : compiled_now()) executable->executor->frames().trim_all();
}

void Session::set_memory_limit(size_t limit_bytes) const { impl_->set_memory_limit(limit_bytes); }

MemoryStatistics Session::memory_statistics() const { return impl_->memory.account->statistics(); }
void Session::reset_memory_peaks() const { impl_->memory.account->reset_peaks(); }

std::pair<std::string, std::vector<PeakTensor>> Session::memory_peak() const {
  std::pair<std::string, std::vector<PeakTensor>> result;
  const exec::Program& program = *impl_->main->program;
  auto plan = impl_->main->executor->plans().bindings().latest_plan();
  if (!plan || program.instructions().empty()) return result;
  const auto buffers = program.buffers();
  const auto instructions = program.instructions();
  IdVector<exec::InstructionId, size_t> live(instructions.size(), 0);
  for (exec::BufferId b : buffers.ids())
    for (size_t i = index_of(buffers[b].first); i <= index_of(buffers[b].last); ++i)
      live[id_at<exec::InstructionId>(i)] += align_up(plan->sizes[b], Storage::kAlignment);
  const exec::InstructionId peak = live.id_of(*std::max_element(live.begin(), live.end()));
  result.first = instructions[peak].node->name;
  for (exec::BufferId b : buffers.ids()) {
    if (plan->sizes[b] == 0 || peak < buffers[b].first || peak > buffers[b].last) continue;
    result.second.push_back({program.name_of_buffer(b), plan->sizes[b], program.class_of_buffer(b)});
  }
  std::stable_sort(result.second.begin(), result.second.end(),
                   [](const PeakTensor& a, const PeakTensor& b) { return a.size_bytes > b.size_bytes; });
  return result;
}

int64_t Session::profiling_start_ns() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->own_profiling ? Recorder::of_process().unix_ns(impl_->own_profiling->window().start()) : 0;
}

std::string_view version() { return TREADLE_VERSION; }

}  // namespace treadle
