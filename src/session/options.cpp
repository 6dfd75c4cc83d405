#include "session/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/nearest.h"
#include "passes/conv_choice.h"
#include "passes/precision.h"
#include "session/model.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using Options = SessionOptions;

constexpr OptionChoice kModes[] = {{"sequential", static_cast<int>(ExecutionMode::sequential)},
                                   {"parallel", static_cast<int>(ExecutionMode::parallel)}};
constexpr OptionChoice kLevels[] = {{"disable_all", static_cast<int>(GraphOptimizationLevel::disable_all)},
                                    {"basic", static_cast<int>(GraphOptimizationLevel::basic)},
                                    {"extended", static_cast<int>(GraphOptimizationLevel::extended)},
                                    {"layout", static_cast<int>(GraphOptimizationLevel::layout)},
                                    {"all", static_cast<int>(GraphOptimizationLevel::all)}};
constexpr OptionChoice kPurposes[] = {{"inference", static_cast<int>(SessionMode::inference)},
                                      {"training", static_cast<int>(SessionMode::training)}};
constexpr std::string_view kOnDevices = "nodes run on devices other than the host";
constexpr double kMostOptionThreads = 4096, kMostStreams = 64;

// Describes the member of an option whose value is an object: only a program can set it.
TextMember<Options> only_in_programs() {
  return {[](const Options&) { return std::string(); }, nullptr};
}

std::string initializer_names(const Options& options) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : options.initializers) names.push_back(name);
  return names_text(names);
}

// Formats the config entries that belong to other libraries: those whose keys do not begin with "treadle.".
std::string entries_of_others(const Options& options) {
  std::map<std::string, std::string> others;
  for (const auto& [key, value] : options.config)
    if (!key.starts_with("treadle.")) others[key] = value;
  return pairs_text(others);
}

// Converts a list of ONNX Runtime's optimizers, in camel case, to the names of passes that do the same. Ignores optimizers without one.
std::string passes_of_optimizers(const std::string& list) {
  constexpr std::pair<std::string_view, std::string_view> kSame[] = {{"CommonSubexpressionElimination", "merge-common-nodes"},
                                                                     {"ConstantFolding", "fold-constants"},
                                                                     {"ConstantSharing", "merge-constants"},
                                                                     {"EliminateDropout", "remove-dropout"},
                                                                     {"EliminateIdentity", "remove-identity"}};
  std::vector<std::string> names;
  add_names(names, list);
  for (std::string& name : names)
    for (auto [optimizer, pass] : kSame)
      if (name == optimizer) name = pass;
  std::erase_if(names, [](const std::string& name) { return name[0] >= 'A' && name[0] <= 'Z'; });
  return names_text(names);
}

std::string speeds_in(const std::string& path) {
  return path.empty() ? path : fmt::format("{}", fmt::join(passes::read_conv_rates(path), " "));
}

void check_precision(const std::string& text) { passes::PrecisionRules::parse(text); }

std::vector<Option<Options>> rows_of_running() {
  return {
      {{.name = "intra_op_num_threads",
        .text = "threads per node, including the caller; 0 or less: the process's shared pool, sized by affinity and the cgroup's quota",
        .most = kMostOptionThreads,
        .leaves_graph = true},
       &Options::intra_op_num_threads},
      {{.name = "inter_op_num_threads",
        .text = "number of nodes to run concurrently with execution_mode parallel; 0 or less: as many as threads",
        .most = kMostOptionThreads,
        .leaves_graph = true},
       &Options::inter_op_num_threads},
      {{.name = "execution_mode",
        .text = "parallel runs independent expensive nodes at once; the results are the same bits",
        .choices = kModes,
        .python_enum = "ExecutionMode",
        .leaves_graph = true},
       choice_member<&Options::execution_mode, Options>()},
      {{.name = "thread_pool",
        .type = "ThreadPool",
        .text = "pool to use instead of the process's shared one; the numbers above limit how many of its threads a run uses",
        .leaves_graph = true},
       only_in_programs()},
      {{.name = "device",
        .type = "cpu, sim, TYPE, TYPE:NAME",
        .text = "default device; sim is a simulated accelerator that checks every access; plugins add other types",
        .empty_means = "cpu",
        .leaves_graph = true,
        .never_compiled = kOnDevices},
       &Options::device},
      {{.name = "group2ctx",
        .type = "GROUP=DEVICE, separated by \";\"",
        .text = "device for each group of nodes; a node names its group by the metadata entry ctx_group",
        .leaves_graph = true,
        .never_compiled = kOnDevices},
       &Options::group2ctx},
      {{.name = "argument_devices",
        .text = "device for an input or initializer; nodes that read it follow",
        .leaves_graph = true,
        .never_compiled = kOnDevices},
       &Options::argument_devices},
      {{.name = "compute_streams",
        .text = "compute streams per device; with several, independent branches run concurrently",
        .least = 1,
        .most = kMostStreams,
        .leaves_graph = true},
       &Options::compute_streams},
      {{.name = "deadline_ms",
        .text = "milliseconds from the start of a run after which it fails, unless the run's own options have a deadline; 0: none",
        .least = 0,
        .leaves_graph = true},
       &Options::deadline_ms},
      {{.name = "strict_symbols",
        .text = "feeds that contradict a symbol of the model are an error; 0: a warning, and a program of their own",
        .leaves_graph = true},
       &Options::strict_symbols},
      {{.name = "set_denormal_as_zero",
        .alias = "session.set_denormal_as_zero",
        .text = "treat denormal numbers as zero, on the host: some processors compute slowly with them",
        .leaves_graph = true},
       &Options::set_denormal_as_zero},
      {{.name = "enable_profiling",
        .text = "record every node; the trace is written when profiling ends, or with the session's end",
        .leaves_graph = true},
       &Options::enable_profiling},
      {{.name = "node_counters", .text = "count how long each node takes, in every run; about 10 ns a node", .leaves_graph = true},
       &Options::node_counters},
      {{.name = "profile_file_prefix", .text = "prefix of the trace's file name", .leaves_graph = true}, &Options::profile_file_prefix},
      {{.name = "job",
        .type = "Job",
        .text = "job that runs belong to; default: the one in the environment (docs/sharing.md)",
        .leaves_graph = true},
       only_in_programs()},
  };
}

std::vector<Option<Options>> rows_of_passes() {
  return {
      {{.name = "graph_optimization_level",
        .text = "disable_all runs the graph as written; basic folds constants and removes what is redundant; extended also fuses "
                "operators; layout also puts channels innermost; all runs every pass",
        .choices = kLevels,
        .python_enum = "GraphOptimizationLevel"},
       choice_member<&Options::graph_optimization_level, Options>()},
      {{.name = "mode",
        .python = "training_mode",
        .text = "training leaves out the passes that hold for inference only",
        .choices = kPurposes,
        .never_compiled = "it is for training"},
       choice_member<&Options::mode, Options>()},
      {{.name = "precision",
        .type = "float32, bfloat16, bfloat16x3, float16, int8_weights; PATTERN=PRECISION, separated by \";\"",
        .text = "arithmetic of convolutions and of products by constant weights, for all nodes or by name pattern (docs/precision.md)",
        .empty_means = "float32",
        .check_text = check_precision},
       &Options::precision},
      {{.name = "max_weight_expansion",
        .text = "largest size of a convolution's transformed weights, relative to the weights; 1 forbids Winograd (1.8 and 4 times)",
        .least = 1,
        .may_be_unlimited = true},
       &Options::max_weight_expansion},
      {{.name = "conv_rates",
        .type = "path",
        .text = "file with the speeds by which convolutions choose their algorithm; bench_conv --calibrate writes it; empty: built-in "
                "speeds",
        .content = speeds_in},
       &Options::conv_rates},
      {{.name = "disabled_passes",
        .alias = "optimization.disable_specified_optimizers",
        .text = "passes of the graph optimiser to leave out",
        .from_alias = passes_of_optimizers},
       &Options::disabled_passes},
      {{.name = "max_patches",
        .text = "stop the graph optimiser after this many changes (to bisect a fault)",
        .least = 0,
        .may_be_unlimited = true},
       &Options::max_patches},
      {{.name = "free_dimension_overrides",
        .python = "add_free_dimension_override_by_name()",
        .type = "SYMBOL=EXTENT, separated by \";\"",
        .text = "fixed extent for a symbol of the inputs' shapes; one below 0 leaves it free, as in onnxruntime"},
       &Options::free_dimension_overrides},
      {{.name = "denotation_overrides",
        .python = "add_free_dimension_override_by_denotation()",
        .type = "DENOTATION=EXTENT, separated by \";\"",
        .text = "fixed extent for dimensions of this denotation (\"DATA_BATCH\"); one below 0 leaves it free"},
       &Options::denotation_overrides},
      {{.name = "initializers",
        .python = "add_initializer()",
        .type = "tensors by name",
        .text = "tensors that replace initializers of the model",
        .never_compiled = "initializers are replaced"},
       TextMember<Options>{initializer_names, nullptr}},
  };
}

std::vector<Option<Options>> rows_of_files() {
  return {
      {{.name = "optimized_model_filepath",
        .type = "path",
        .text = "file to write the optimised ONNX model to; empty: none",
        .leaves_graph = true},
       &Options::optimized_model_filepath},
      {{.name = "optimized_model_data_file",
        .alias = "session.optimized_model_external_initializers_file_name",
        .type = "file name",
        .text = "file beside the optimised model that takes its large initializers; empty: they stay in the model",
        .leaves_graph = true},
       &Options::optimized_model_data_file},
      {{.name = "optimized_model_data_threshold",
        .alias = "session.optimized_model_external_initializers_min_size_in_bytes",
        .text = "smallest initializer that goes to optimized_model_data_file, in bytes",
        .least = 0,
        .form = OptionForm::bytes,
        .leaves_graph = true},
       &Options::optimized_model_data_threshold},
      {{.name = "cache_dir",
        .type = "path",
        .text = "folder of compiled models: the first session of a model writes one, later sessions map it (docs/compiled-models.md); "
                "empty: none",
        .leaves_graph = true},
       &Options::cache_dir},
      {{.name = "compiled_model_filepath",
        .type = "path",
        .text = "file to write the compiled model to; empty: none",
        .leaves_graph = true},
       &Options::compiled_model_filepath},
      {{.name = "on_pass",
        .python = "-",
        .type = "function",
        .text = "called with what every pass did, and how long it took",
        .leaves_graph = true},
       only_in_programs()},
      {{.name = "on_warning",
        .python = "-",
        .type = "function",
        .text = "called with warnings about the model; in Python they go to `logging`",
        .leaves_graph = true},
       only_in_programs()},
  };
}

std::vector<Option<Options>> rows_of_memory() {
  return {
      {{.name = "reuse_memory",
        .python = "enable_mem_reuse",
        .text = "0: every value has its own bytes (for debugging)",
        .leaves_graph = true},
       &Options::reuse_memory},
      {{.name = "verify_plans",
        .text = "prove of every new memory plan, and of a sample of runs with new extents, that each node reads what was written for it; "
                "debug builds and TREADLE_VERIFY_PLANS=1 prove all",
        .leaves_graph = true},
       &Options::verify_plans},
      {{.name = "allocator",
        .type = "names, joined by \"+\"",
        .text = "source of memory: plain, arena, guard, nan, pattern, recording; \"nan+guard\" fills the guard's memory with NaN",
        .leaves_graph = true,
        .never_compiled = "its weights come from an allocator of its own"},
       TextMember<Options>{[](const Options& o) { return std::string(o.allocator ? o.allocator->name() : "plain"); },
                           [](Options& o, const std::string& text) { o.allocator = make_allocator(text); },
                           [](const Options& o) { return o.allocator != nullptr; }}},
      {{.name = "memory_limit_bytes",
        .text = "limit for weights, packed weights, activations, scratch and outputs until they are handed over, on a device for its "
                "memory; runs reorder, spill and recompute to keep it; 0: no limit",
        .form = OptionForm::bytes,
        .leaves_graph = true},
       &Options::memory_limit_bytes},
      {{.name = "memory_fraction",
        .text = "share of the activations and scratch of a run that it may have, where a plan can do with it: runs reorder, spill and "
                "recompute; of what learns, its training steps; 0: no limit",
        .least = 0,
        .most = 1,
        .leaves_graph = true},
       &Options::memory_fraction},
      {{.name = "recompute_fraction",
        .text = "share of a run's time, as estimated, that it may spend on computing values a second time so that it needs less memory; "
                "of what learns, its training steps; -1: up to 0.1 of what learns on the host in order, as far as a percent of the time "
                "frees four of the memory; 0 otherwise",
        .least = 0,
        .most = 1,
        .also = -1,
        .leaves_graph = true},
       &Options::recompute_fraction},
      {{.name = "memory_account",
        .python = "-",
        .type = "MemoryAccount",
        .text = "account that is charged with everything the session is charged with",
        .leaves_graph = true},
       only_in_programs()},
      {{.name = "spill_folder",
        .type = "path",
        .text = "folder for values that do not fit; empty: the one for temporary files",
        .leaves_graph = true},
       &Options::spill_folder},
      {{.name = "use_mmap", .text = "map the model's files and use weights in place; 0 reads them into memory", .leaves_graph = true},
       &Options::use_mmap},
      {{.name = "share_weights",
        .text = "hold weights and packed weights that several sessions of the process have once; 0: every session has its own",
        .leaves_graph = true},
       &Options::share_weights},
  };
}

std::vector<Option<Options>> rows_of_entries() {
  constexpr std::string_view kMethod = "add_session_config_entry()";
  constexpr double kMostDelay = 1'000'000, kMostPace = 1000;
  return {
      {{.name = "config",
        .type = "texts by key",
        .text = "config entries; the keys in this table set the option beside them, others are kept",
        .leaves_graph = true},
       TextMember<Options>{entries_of_others, nullptr}},
      {{.name = "storage",
        .python = kMethod,
        .type = "NAME=csr, coo or row_sparse, separated by \";\"",
        .text = "storage types of inputs (docs/executor.md)"},
       ConfigMember{}},
      {{.name = "backends",
        .python = kMethod,
        .type = "names",
        .text = "subgraph backends, with their properties (docs/add-a-backend.md)",
        .never_compiled = "subgraphs go to backends"},
       ConfigMember{}},
      {{.name = "sim.memory", .python = kMethod, .text = "memory of the simulated device", .form = OptionForm::bytes, .leaves_graph = true},
       ConfigMember{}},
      {{.name = "sim.bus_per_second",
        .python = kMethod,
        .text = "bytes per second of the simulated device's bus",
        .form = OptionForm::bytes,
        .leaves_graph = true},
       ConfigMember{}},
      {{.name = "sim.max_delay_us",
        .python = kMethod,
        .text = "largest random delay before each piece of the simulated device's work, in microseconds",
        .least = 0,
        .most = kMostDelay,
        .form = OptionForm::integer,
        .leaves_graph = true},
       ConfigMember{}},
      {{.name = "sim.shared_engine",
        .python = kMethod,
        .text = "all streams of the simulated device compute on one engine, one piece of work at a time",
        .form = OptionForm::flag,
        .leaves_graph = true},
       ConfigMember{}},
      {{.name = "sim.engine_pace",
        .python = kMethod,
        .text = "slow-down of the shared engine relative to the host",
        .least = 0,
        .most = kMostPace,
        .form = OptionForm::integer,
        .leaves_graph = true},
       ConfigMember{}},
  };
}

std::vector<Option<Options>> all_option_rows() {
  std::vector<Option<Options>> rows = rows_of_running();
  for (auto part : {rows_of_passes, rows_of_files, rows_of_memory, rows_of_entries})
    for (Option<Options>& row : part()) rows.push_back(std::move(row));
  return rows;
}

const SessionOptions& session_defaults() {
  static const SessionOptions kDefaults;
  return kDefaults;
}

// Checks that the inputs have all overridden names. @param kind  "symbol" or "denotation", for messages
// @param known  all names that the model's inputs use
void check_overrides(std::string_view option, std::string_view kind, const std::map<std::string, int64_t>& overrides,
                     std::set<std::string> known, const SessionOptions& options) {
  known.erase(std::string());
  const std::vector<std::string> names(known.begin(), known.end());
  for (const auto& [name, extent] : overrides) {
    if (known.contains(name)) continue;
    const std::string text = fmt::format("{}: no input has the {} \"{}\"{}", option, kind, name,
                                         names.empty() ? std::string() : fmt::format("; is it {}?", nearest_names(name, names)));
    if (!options.on_warning) throw Error(ErrorCode::not_found, text);
    options.on_warning(text);
  }
}

}  // namespace

const OptionTable<SessionOptions>& session_option_table() {
  static const OptionTable<SessionOptions> table(all_option_rows());
  return table;
}

void set_option(SessionOptions& options, std::string_view name, const std::string& value) {
  session_option_table().set(options, name, value);
}

void add_config_entry(SessionOptions& options, const std::string& key, const std::string& value) {
  session_option_table().add_entry(options, key, value);
}

passes::Level optimizer_level(GraphOptimizationLevel level) {
  return static_cast<passes::Level>(std::min(static_cast<int>(level), static_cast<int>(passes::Level::layout)));
}

SessionOptions complete(const SessionOptions& given) {
  SessionOptions options = given;
  session_option_table().complete(options, session_defaults());
  for (auto* overrides : {&options.free_dimension_overrides, &options.denotation_overrides})
    std::erase_if(*overrides, [](const auto& entry) { return entry.second < 0; });
  if (const auto format = options.config.find("session.save_model_format");
      format != options.config.end() && format->second == "ORT" && !options.optimized_model_filepath.empty())
    throw Error(
        ErrorCode::not_implemented,
        "session.save_model_format is ORT: ONNX Runtime's own format (.ort) is read, not written; the optimised model is written as "
        "ONNX without this entry");
  if (!options.optimized_model_data_file.empty() && options.optimized_model_filepath.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("optimized_model_data_file is \"{}\", but no optimized_model_filepath says where the model goes",
                            options.optimized_model_data_file));
  if (options.optimized_model_data_file.empty() &&
      options.optimized_model_data_threshold != session_defaults().optimized_model_data_threshold)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("optimized_model_data_threshold is {}, but no optimized_model_data_file says where initializers go",
                            options.optimized_model_data_threshold));
  std::vector<std::string> passes;
  for (const auto& pass : passes::list_passes()) passes.emplace_back(pass.name);
  for (const std::string& name : options.disabled_passes)
    if (std::find(passes.begin(), passes.end(), name) == passes.end())
      throw Error(ErrorCode::not_found, fmt::format("there is no pass \"{}\"; is it {}?", name, nearest_names(name, passes)));
  return options;
}

void check_symbols(const Model& model, const SessionOptions& options) {
  if (!options.free_dimension_overrides.empty()) {
    std::set<std::string> symbols;
    for (const ValueInfo& info : model.inputs())
      for (const auto& extent : info.shape)
        if (const auto* symbol = std::get_if<std::string>(&extent); symbol && !symbol->empty()) symbols.insert(*symbol);
    check_overrides("free_dimension_overrides", "symbol", options.free_dimension_overrides, std::move(symbols), options);
  }
  if (!options.denotation_overrides.empty()) {
    std::set<std::string> denotations;
    for (const onnx::ValueInfoDef& input : model.impl().def.graph.inputs)
      if (input.type.shape)
        for (const onnx::DimDef& dim : *input.type.shape)
          if (!dim.denotation.empty()) denotations.insert(dim.denotation);
    check_overrides("denotation_overrides", "denotation", options.denotation_overrides, std::move(denotations), options);
  }
}

std::string options_markdown() { return session_option_table().markdown(session_defaults()); }

}  // namespace treadle
