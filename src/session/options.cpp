#include "session/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/nearest.h"
#include "passes/pipeline.h"
#include "passes/precision.h"
#include "treadle/error.h"

namespace treadle {
namespace {

[[noreturn]] void throw_value(const std::string& value, std::string_view expected) {
  throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is given, {} is expected", value, expected));
}

int64_t number_of(const std::string& value) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < 0) throw_value(value, "a number from 0 on");
  return number;
}

bool switch_of(const std::string& value) {
  if (value == "1" || value == "true") return true;
  if (value == "0" || value == "false") return false;
  throw_value(value, "0 or 1");
}

std::string text_of(bool value) { return value ? "1" : "0"; }

// ONNX Runtime's option of the same meaning takes a list of names, separated by ";" or ",".
void add_names(std::vector<std::string>& names, const std::string& list) {
  for (size_t start = 0; start < list.size();) {
    const size_t end = std::min(list.find_first_of(";,", start), list.size());
    if (end > start) names.push_back(list.substr(start, end - start));
    start = end + 1;
  }
}

void add_extent(std::map<std::string, int64_t>& extents, const std::string& value) {
  const size_t equals = value.find('=');
  if (equals == std::string::npos || equals == 0) throw_value(value, "NAME=EXTENT");
  extents[value.substr(0, equals)] = number_of(value.substr(equals + 1));
}

// KEY=DEVICE pairs, separated by ";" or ",".
void add_devices(std::map<std::string, std::string>& devices, const std::string& value) {
  std::vector<std::string> pairs;
  add_names(pairs, value);
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size()) throw_value(value, "NAME=DEVICE");
    devices[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
}

std::string level_name(const SessionOptions& options) {
  switch (options.graph_optimization_level) {
    case GraphOptimizationLevel::disable_all: return "disable_all";
    case GraphOptimizationLevel::basic: return "basic";
    case GraphOptimizationLevel::extended: return "extended";
    case GraphOptimizationLevel::layout: return "layout";
    case GraphOptimizationLevel::all: break;
  }
  return "all";
}

void set_level(SessionOptions& options, const std::string& value) {
  for (auto level : {GraphOptimizationLevel::disable_all, GraphOptimizationLevel::basic, GraphOptimizationLevel::extended,
                     GraphOptimizationLevel::layout, GraphOptimizationLevel::all}) {
    SessionOptions candidate;
    candidate.graph_optimization_level = level;
    if (level_name(candidate) != value) continue;
    options.graph_optimization_level = level;
    return;
  }
  throw_value(value, "disable_all, basic, extended, layout or all");
}

// A list for ONNX Runtime names its optimizers, in camel case: they leave out nothing here.
bool is_optimizer_of_others(const std::string& name) { return !name.empty() && name[0] >= 'A' && name[0] <= 'Z'; }

// @param expected  what to say of others
double real_of(const std::string& value, double least, double most, const char* expected) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || !(number >= least && number <= most)) throw_value(value, expected);
  return number;
}

double expansion_of(const std::string& value) {
  constexpr double kUnlimited = std::numeric_limits<double>::infinity();
  return value == "unlimited" ? kUnlimited : real_of(value, 1, kUnlimited, "a number from 1 on, or unlimited");
}

using Options = SessionOptions;
using Text = const std::string&;

std::string no_default(const Options&) { return {}; }

// What is no member of SessionOptions.
constexpr OptionInfo config_entry(std::string_view key, std::string_view type, std::string_view text) {
  return {"config", "add_session_config_entry()", key, type, text, no_default, nullptr};
}

const OptionInfo kTable[] = {
    {"intra_op_num_threads", "", "", "number",
     "threads per node, including the caller; 0: the process's shared pool, sized by affinity and the cgroup's quota",
     [](const Options& o) { return std::to_string(o.intra_op_num_threads); },
     [](Options& o, Text v) { o.intra_op_num_threads = static_cast<int>(std::min<int64_t>(number_of(v), 4096)); }},
    {"inter_op_num_threads", "", "", "number", "number of nodes to run concurrently with execution_mode parallel; 0: as many as threads",
     [](const Options& o) { return std::to_string(o.inter_op_num_threads); },
     [](Options& o, Text v) { o.inter_op_num_threads = static_cast<int>(std::min<int64_t>(number_of(v), 4096)); }},
    {"execution_mode", "", "", "sequential, parallel", "parallel runs independent expensive nodes at once; the results are the same bits",
     [](const Options& o) { return std::string(o.execution_mode == ExecutionMode::parallel ? "parallel" : "sequential"); },
     [](Options& o, Text v) {
       if (v != "sequential" && v != "parallel") throw_value(v, "sequential or parallel");
       o.execution_mode = v == "parallel" ? ExecutionMode::parallel : ExecutionMode::sequential;
     }},
    {"thread_pool", "", "", "ThreadPool",
     "pool to use instead of the process's shared one; the numbers above limit how many of its threads a run uses",
     [](const Options&) { return std::string(); }, nullptr},
    {"graph_optimization_level", "", "", "disable_all, basic, extended, layout, all",
     "disable_all runs the graph as written; basic folds constants and removes what is redundant; extended also fuses operators; layout "
     "also puts "
     "channels innermost; all runs every pass",
     level_name, set_level},
    {"mode", "training_mode", "", "inference, training", "training leaves out the passes that hold for inference only",
     [](const Options& o) { return std::string(o.mode == SessionMode::training ? "training" : "inference"); },
     [](Options& o, Text v) {
       if (v != "training" && v != "inference") throw_value(v, "inference or training");
       o.mode = v == "training" ? SessionMode::training : SessionMode::inference;
     }},
    {"precision", "", "treadle.precision", "float32, bfloat16, bfloat16x3, float16, int8_weights; PATTERN=PRECISION, separated by \";\"",
     "arithmetic of convolutions and of products by constant weights, for all nodes or by name pattern (docs/precision.md)",
     [](const Options& o) { return o.precision.empty() ? std::string("float32") : o.precision; },
     [](Options& o, Text v) {
       passes::PrecisionRules::parse(v);
       o.precision = v;
     }},
    {"max_weight_expansion", "", "treadle.max_weight_expansion", "number from 1 on, or unlimited",
     "largest size of a convolution's transformed weights, relative to the weights; 1 forbids Winograd (1.8 and 4 times)",
     [](const Options& o) {
       return std::isinf(o.max_weight_expansion) ? std::string("unlimited") : fmt::format("{}", o.max_weight_expansion);
     },
     [](Options& o, Text v) { o.max_weight_expansion = expansion_of(v); }},
    {"conv_rates", "", "treadle.conv_rates", "path",
     "file with the speeds by which convolutions choose their algorithm; bench_conv --calibrate writes it; empty: built-in speeds",
     [](const Options& o) { return o.conv_rates; }, [](Options& o, Text v) { o.conv_rates = v; }},
    {"device", "", "treadle.device", "cpu, sim, TYPE, TYPE:NAME",
     "default device; sim is a simulated accelerator that checks every access; plugins add other types",
     [](const Options& o) { return o.device; }, [](Options& o, Text v) { o.device = v; }},
    {"group2ctx", "", "treadle.group2ctx", "GROUP=DEVICE, separated by \";\"",
     "device for each group of nodes; a node names its group by the metadata entry ctx_group", [](const Options&) { return std::string(); },
     [](Options& o, Text v) { add_devices(o.group2ctx, v); }},
    {"argument_devices", "", "treadle.argument_devices", "NAME=DEVICE, separated by \";\"",
     "device for an input or initializer; nodes that read it follow", [](const Options&) { return std::string(); },
     [](Options& o, Text v) { add_devices(o.argument_devices, v); }},
    {"compute_streams", "", "treadle.compute_streams", "number",
     "compute streams per device; with several, independent branches run concurrently",
     [](const Options& o) { return std::to_string(o.compute_streams); },
     [](Options& o, Text v) { o.compute_streams = static_cast<int>(std::clamp<int64_t>(number_of(v), 1, 64)); }},
    {"reuse_memory", "enable_mem_reuse", "", "0 or 1", "0: every value has its own bytes (for debugging)",
     [](const Options& o) { return text_of(o.reuse_memory); }, [](Options& o, Text v) { o.reuse_memory = switch_of(v); }},
    {"verify_plans", "", "treadle.verify_plans", "0 or 1",
     "prove of every new memory plan, and of a sample of runs with new extents, that each node reads what was written for it; debug "
     "builds and TREADLE_VERIFY_PLANS=1 prove all",
     [](const Options& o) { return text_of(o.verify_plans); }, [](Options& o, Text v) { o.verify_plans = switch_of(v); }},
    {"allocator", "", "treadle.allocator", "names, joined by \"+\"",
     "source of memory: plain, arena, guard, nan, pattern, recording; \"nan+guard\" fills the guard's memory with NaN",
     [](const Options& o) { return std::string(o.allocator ? o.allocator->name() : "plain"); },
     [](Options& o, Text v) { o.allocator = make_allocator(v); }},
    {"memory_limit_bytes", "", "treadle.memory_limit_bytes", "number",
     "limit for weights, packed weights, activations, scratch and outputs until they are handed over, on a device for its memory; runs "
     "reorder, spill and recompute to keep it; 0: no limit",
     [](const Options& o) { return std::to_string(o.memory_limit_bytes); },
     [](Options& o, Text v) { o.memory_limit_bytes = static_cast<size_t>(number_of(v)); }},
    {"memory_fraction", "", "treadle.memory_fraction", "number from 0 to 1",
     "share of the activations and scratch of a run that it may have, where a plan can do with it: runs reorder, spill and recompute; "
     "of what learns, its training steps; 0: no limit",
     [](const Options& o) { return fmt::format("{}", o.memory_fraction); },
     [](Options& o, Text v) { o.memory_fraction = real_of(v, 0, 1, "a number from 0 to 1"); }},
    {"recompute_fraction", "", "treadle.recompute_fraction", "number from 0 to 1, or -1",
     "share of a run's time, as estimated, that it may spend on computing values a second time so that it needs less memory; of what "
     "learns, its training steps; -1: up to 0.1 of what learns on the host in order, as far as a percent of the time frees four of the "
     "memory; 0 otherwise",
     [](const Options& o) { return fmt::format("{}", o.recompute_fraction); },
     [](Options& o, Text v) { o.recompute_fraction = v == "-1" ? -1 : real_of(v, 0, 1, "a number from 0 to 1, or -1"); }},
    {"memory_account", "-", "", "MemoryAccount", "account that is charged with everything the session is charged with",
     [](const Options&) { return std::string(); }, nullptr},
    {"spill_folder", "", "treadle.spill_folder", "path", "folder for values that do not fit; empty: the one for temporary files",
     [](const Options& o) { return o.spill_folder; }, [](Options& o, Text v) { o.spill_folder = v; }},
    {"use_mmap", "", "treadle.use_mmap", "0 or 1", "map the model's files and use weights in place; 0 reads them into memory",
     [](const Options& o) { return text_of(o.use_mmap); }, [](Options& o, Text v) { o.use_mmap = switch_of(v); }},
    {"share_weights", "", "treadle.share_weights", "0 or 1",
     "hold weights and packed weights that several sessions of the process have once; 0: every session has its own",
     [](const Options& o) { return text_of(o.share_weights); }, [](Options& o, Text v) { o.share_weights = switch_of(v); }},
    {"strict_symbols", "", "treadle.strict_symbols", "0 or 1",
     "feeds that contradict a symbol of the model are an error; 0: a warning, and a program of their own",
     [](const Options& o) { return text_of(o.strict_symbols); }, [](Options& o, Text v) { o.strict_symbols = switch_of(v); }},
    {"set_denormal_as_zero", "", "session.set_denormal_as_zero", "0 or 1",
     "treat denormal numbers as zero, on the host: some processors compute slowly with them",
     [](const Options& o) { return text_of(o.set_denormal_as_zero); }, [](Options& o, Text v) { o.set_denormal_as_zero = switch_of(v); }},
    {"enable_profiling", "", "", "0 or 1", "record every node; the trace is written when profiling ends",
     [](const Options& o) { return text_of(o.enable_profiling); }, [](Options& o, Text v) { o.enable_profiling = switch_of(v); }},
    {"node_counters", "", "treadle.node_counters", "0 or 1", "count how long each node takes, in every run; about 10 ns a node",
     [](const Options& o) { return text_of(o.node_counters); }, [](Options& o, Text v) { o.node_counters = switch_of(v); }},
    {"profile_file_prefix", "", "", "text", "prefix of the trace's file name", [](const Options& o) { return o.profile_file_prefix; },
     [](Options& o, Text v) { o.profile_file_prefix = v; }},
    {"optimized_model_filepath", "", "", "path", "file to write the optimised ONNX model to; empty: none",
     [](const Options& o) { return o.optimized_model_filepath; }, [](Options& o, Text v) { o.optimized_model_filepath = v; }},
    {"optimized_model_data_file", "", "session.optimized_model_external_initializers_file_name", "file name",
     "file beside the optimised model that takes its large initializers; empty: they stay in the model",
     [](const Options& o) { return o.optimized_model_data_file; }, [](Options& o, Text v) { o.optimized_model_data_file = v; }},
    {"optimized_model_data_threshold", "", "session.optimized_model_external_initializers_min_size_in_bytes", "bytes",
     "smallest initializer that goes to optimized_model_data_file",
     [](const Options& o) { return std::to_string(o.optimized_model_data_threshold); },
     [](Options& o, Text v) { o.optimized_model_data_threshold = number_of(v); }},
    {"cache_dir", "", "treadle.cache_dir", "path",
     "folder of compiled models: the first session of a model writes one, later sessions map it (docs/compiled-models.md); empty: none",
     [](const Options& o) { return o.cache_dir; }, [](Options& o, Text v) { o.cache_dir = v; }},
    {"compiled_model_filepath", "", "", "path", "file to write the compiled model to; empty: none",
     [](const Options& o) { return o.compiled_model_filepath; }, [](Options& o, Text v) { o.compiled_model_filepath = v; }},
    {"disabled_passes", "", "optimization.disable_specified_optimizers", "names, separated by \";\"",
     "passes of the graph optimiser to leave out", [](const Options& o) { return fmt::format("{}", fmt::join(o.disabled_passes, ";")); },
     [](Options& o, Text v) { add_names(o.disabled_passes, v); }},
    {"max_patches", "", "", "number", "stop the graph optimiser after this many changes (to bisect a fault)",
     [](const Options& o) { return o.max_patches == INT64_MAX ? std::string("unlimited") : std::to_string(o.max_patches); },
     [](Options& o, Text v) { o.max_patches = number_of(v); }},
    {"free_dimension_overrides", "add_free_dimension_override_by_name()", "", "SYMBOL=EXTENT",
     "fixed extent for a symbol of the inputs' shapes", [](const Options&) { return std::string(); },
     [](Options& o, Text v) { add_extent(o.free_dimension_overrides, v); }},
    {"denotation_overrides", "add_free_dimension_override_by_denotation()", "", "DENOTATION=EXTENT",
     "fixed extent for dimensions of this denotation (\"DATA_BATCH\")", [](const Options&) { return std::string(); },
     [](Options& o, Text v) { add_extent(o.denotation_overrides, v); }},
    {"initializers", "add_initializer()", "", "tensors by name", "tensors that replace initializers of the model",
     [](const Options&) { return std::string(); }, nullptr},
    {"config", "add_session_config_entry()", "", "texts by key",
     "config entries; the keys in this table set the option beside them, others are kept", [](const Options&) { return std::string(); },
     nullptr},
    config_entry("treadle.storage", "NAME=csr, coo or row_sparse, separated by \";\"", "storage types of inputs (docs/executor.md)"),
    config_entry("treadle.backends", "names", "subgraph backends, with their properties (docs/add-a-backend.md)"),
    config_entry("treadle.sim.memory", "bytes", "memory of the simulated device"),
    config_entry("treadle.sim.bus_per_second", "bytes", "bytes per second of the simulated device's bus"),
    config_entry("treadle.sim.max_delay_us", "number",
                 "largest random delay before each piece of the simulated device's work, in microseconds"),
    config_entry("treadle.sim.shared_engine", "0 or 1",
                 "all streams of the simulated device compute on one engine, one piece of work at a time"),
    config_entry("treadle.sim.engine_pace", "number", "slow-down of the shared engine relative to the host"),
    {"job", "", "", "Job", "job that runs belong to; default: the one in the environment (docs/sharing.md)",
     [](const Options&) { return std::string(); }, nullptr},
    {"on_pass", "-", "", "function", "called with what every pass did, and how long it took", [](const Options&) { return std::string(); },
     nullptr},
    {"on_warning", "-", "", "function", "called with warnings about the model; in Python they go to `logging`",
     [](const Options&) { return std::string(); }, nullptr},
};

}  // namespace

std::span<const OptionInfo> option_table() { return kTable; }

void set_option(SessionOptions& options, std::string_view name, const std::string& value) {
  for (const OptionInfo& info : kTable) {
    if (info.name != name || !info.set) continue;
    try {
      return info.set(options, value);
    } catch (Error& error) {
      throw Error(error.code(), fmt::format("the option {}: {}", name, error.what()));
    }
  }
  std::vector<std::string> names;
  for (const OptionInfo& info : kTable)
    if (info.set) names.emplace_back(info.name);
  throw Error(ErrorCode::not_found, fmt::format("there is no option \"{}\"; the options are: {}; is it {}?", name, fmt::join(names, ", "),
                                                nearest_names(name, names)));
}

void add_config_entry(SessionOptions& options, const std::string& key, const std::string& value) {
  if (key.empty()) throw Error(ErrorCode::invalid_argument, "the key of a configuration entry is empty");
  check_config_key(key);
  for (const OptionInfo& info : kTable)
    if (info.key == key && info.set) set_option(options, info.name, value);
  options.config[key] = value;
}

passes::Level optimizer_level(GraphOptimizationLevel level) {
  return static_cast<passes::Level>(std::min(static_cast<int>(level), static_cast<int>(passes::Level::layout)));
}

void check_config_key(const std::string& key) {
  if (key.rfind("treadle.", 0) != 0) return;  // of others: kept
  std::vector<std::string> keys;
  for (const OptionInfo& info : kTable) {
    if (info.key == key) return;
    if (info.key.rfind("treadle.", 0) == 0) keys.emplace_back(info.key);
  }
  throw Error(ErrorCode::not_found, fmt::format("there is no config entry \"{}\"; is it {}?", key, nearest_names(key, keys)));
}

SessionOptions complete(const SessionOptions& given) {
  static const SessionOptions kDefaults;
  SessionOptions options = given;
  for (const auto& [key, value] : given.config) {
    check_config_key(key);
    for (const OptionInfo& info : kTable)
      if (info.key == key && info.set && info.get(given) == info.get(kDefaults)) set_option(options, info.name, value);
  }
  if (!options.optimized_model_data_file.empty() && options.optimized_model_filepath.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("optimized_model_data_file is \"{}\", but no optimized_model_filepath says where the model goes",
                            options.optimized_model_data_file));
  if (options.optimized_model_data_file.empty() && options.optimized_model_data_threshold != kDefaults.optimized_model_data_threshold)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("optimized_model_data_threshold is {}, but no optimized_model_data_file says where initializers go",
                            options.optimized_model_data_threshold));
  if (!(options.memory_fraction >= 0 && options.memory_fraction <= 1))
    throw Error(ErrorCode::invalid_argument, fmt::format("memory_fraction is {}; it must be from 0 to 1", options.memory_fraction));
  if (!(options.recompute_fraction >= 0 && options.recompute_fraction <= 1) && options.recompute_fraction != -1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("recompute_fraction is {}; it must be from 0 to 1, or -1", options.recompute_fraction));
  std::vector<std::string> passes;
  for (const auto& pass : passes::list_passes()) passes.emplace_back(pass.name);
  for (const std::string& name : options.disabled_passes)
    if (std::find(passes.begin(), passes.end(), name) == passes.end() && !is_optimizer_of_others(name))
      throw Error(ErrorCode::not_found, fmt::format("there is no pass \"{}\"; is it {}?", name, nearest_names(name, passes)));
  return options;
}

std::string options_markdown() {
  const SessionOptions defaults;
  std::string text = "| option | in Python | config entry | type | default | meaning |\n|---|---|---|---|---|---|\n";
  for (const OptionInfo& info : kTable) {
    const std::string value = info.get(defaults);
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", info.name, info.python.empty() ? info.name : info.python, info.key, info.type,
                        value, info.text);
  }
  return text;
}

}  // namespace treadle
