// SessionOptions and RunOptions, with ONNX Runtime's names and defaults.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/variant.h>

#include <stdexcept>
#include <variant>

#include "datum.h"
#include "treadle/sharing.h"

namespace treadle::python {
namespace {

nb::object enum_value(const char* name, int value) { return nb::module_::import_("treadle.enums").attr(name)(value); }

// ONNX Runtime takes its own enums only; plain numbers are as clear.
int enum_number(const char* name, nb::handle value) {
  return nb::cast<int>(nb::object(nb::module_::import_("treadle.enums").attr(name)(value).attr("value")));
}

std::string config_entry(const std::map<std::string, std::string>& config, const std::string& key) {
  auto found = config.find(key);
  if (found == config.end()) throw std::runtime_error("there is no configuration entry \"" + key + "\"");
  return found->second;
}

const char* finite_check_name(FiniteCheck check) { return check == FiniteCheck::off ? "off" : check == FiniteCheck::nan ? "nan" : "all"; }

FiniteCheck finite_check_from(const std::string& name) {
  for (FiniteCheck check : {FiniteCheck::off, FiniteCheck::nan, FiniteCheck::nan_and_infinity})
    if (name == finite_check_name(check)) return check;
  throw Error(ErrorCode::invalid_argument, "check_finite is \"off\", \"nan\" or \"all\", not \"" + name + "\"");
}

// The options hold the callback, and a run holds the options.
void set_metadata_callback(PyRunOptions& options, nb::object callback) {
  if (callback.is_none()) {
    options.on_metadata = {};
  } else {
    options.on_metadata = [function = callback.ptr()](const RunMetadata& metadata) {
      nb::gil_scoped_acquire gil;
      nb::borrow(function)(metadata);
    };
  }
  options.metadata_callback = std::move(callback);
}

nb::object pool_object(const std::shared_ptr<ThreadPool>& pool) { return pool ? nb::cast(PyThreadPool{pool}) : nb::object(nb::none()); }

std::shared_ptr<ThreadPool> pool_of(nb::handle object) { return object.is_none() ? nullptr : nb::cast<PyThreadPool&>(object).pool; }

void add_initializers(PySessionOptions& options, const std::vector<std::string>& names, const std::vector<OrtValue>& values) {
  if (names.size() != values.size())
    throw Error(ErrorCode::invalid_argument,
                std::to_string(names.size()) + " names for " + std::to_string(values.size()) + " initializers");
  for (size_t i = 0; i < names.size(); ++i) options.initializers[names[i]] = values[i].datum.tensor();
}

void add_external_files(PySessionOptions& options, const std::vector<std::string>& names, const nb::list& buffers,
                        const std::vector<size_t>& lengths) {
  if (names.size() != buffers.size() || names.size() != lengths.size())
    throw Error(ErrorCode::invalid_argument, "file names, buffers and lengths differ in number");
  for (size_t i = 0; i < names.size(); ++i) {
    std::shared_ptr<Storage> storage = storage_from_buffer(buffers[i]);
    if (lengths[i] > storage->size_bytes())
      throw Error(ErrorCode::invalid_argument, "the file \"" + names[i] + "\" has " + std::to_string(storage->size_bytes()) +
                                                   " bytes, not " + std::to_string(lengths[i]));
    options.external_files[names[i]] = Storage::borrow(
        storage->data(), lengths[i], [storage] {}, false);
  }
}

void expect_provider(const std::string& name) {
  if (name != "CPUExecutionProvider") throw std::runtime_error("Unknown Provider Type: " + name + "; CPUExecutionProvider is the only one");
}

void add_provider_for_devices(PySessionOptions&, nb::sequence devices, nb::handle) {
  if (nb::len(devices) == 0) throw Error(ErrorCode::invalid_argument, "Must provide one or more OrtEpDevice instances.");
  for (nb::handle device : devices) expect_provider(nb::cast<std::string>(device.attr("ep_name")));
}

}  // namespace

void register_options(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<PySessionOptions> session(module, "SessionOptions");
  session.def(nb::init<>())
      .def(nb::init<const PySessionOptions&>(), "other"_a)
      .def_rw("intra_op_num_threads", &PySessionOptions::intra_op_num_threads,
              "Threads of one node; 0: the process's shared pool, sized by affinity and cgroup.")
      .def_rw("inter_op_num_threads", &PySessionOptions::inter_op_num_threads)
      .def_rw("enable_mem_reuse", &PySessionOptions::reuse_memory, "False: every value has bytes of its own.")
      .def_prop_rw(
          "allocator", [](const PySessionOptions& options) { return std::string(options.allocator ? options.allocator->name() : "plain"); },
          [](PySessionOptions& options, const std::variant<std::string, PyAllocator>& given) {
            const auto* kinds = std::get_if<std::string>(&given);
            options.allocator = kinds ? make_allocator(*kinds) : std::get<PyAllocator>(given).allocator;
          },
          "Where memory comes from: plain, arena, guard, nan, pattern, recording, joined by \"+\"; or a treadle.memory.Allocator, which "
          "several "
          "sessions "
          "may have.")
      .def_rw("memory_limit_bytes", &PySessionOptions::memory_limit_bytes,
              "Of weights, activations and outputs until they are handed over; runs spill and compute twice to keep to it. 0: none.")
      .def_rw("memory_fraction", &PySessionOptions::memory_fraction,
              "Share of a run's activations and scratch that it may have, where a plan can do with it. 0: no limit.")
      .def_rw("recompute_fraction", &PySessionOptions::recompute_fraction,
              "Share of a run's time that it may spend on computing values a second time, so that it needs less memory.\n\n"
              "-1: up to 0.1 of what learns on the host in order, as far as a percent of the time frees four of that memory; 0 otherwise.")
      .def_rw("spill_folder", &PySessionOptions::spill_folder)
      .def_rw("device", &PySessionOptions::device, "Default device: \"cpu\", \"sim\" or \"sim:NAME\".")
      .def_rw("group2ctx", &PySessionOptions::group2ctx, "Devices of groups of nodes, by the \"ctx_group\" of their metadata.")
      .def_rw("argument_devices", &PySessionOptions::argument_devices, "Devices of inputs and initializers, by name.")
      .def_rw("compute_streams", &PySessionOptions::compute_streams, "Of every device: independent branches on different ones.")
      .def_rw("enable_profiling", &PySessionOptions::enable_profiling)
      .def_rw("node_counters", &PySessionOptions::node_counters, "Count how long each node takes, in every run: `node_counters()`.")
      .def_rw("profile_file_prefix", &PySessionOptions::profile_file_prefix)
      .def_rw("optimized_model_filepath", &PySessionOptions::optimized_model_filepath)
      .def_prop_rw(
          "graph_optimization_level",
          [](const PySessionOptions& options) {
            return enum_value("GraphOptimizationLevel", static_cast<int>(options.graph_optimization_level));
          },
          [](PySessionOptions& options, nb::handle value) {
            options.graph_optimization_level = static_cast<GraphOptimizationLevel>(enum_number("GraphOptimizationLevel", value));
          },
          nb::for_getter(nb::sig("def graph_optimization_level(self) -> treadle.enums.GraphOptimizationLevel")))
      .def_prop_rw(
          "execution_mode",
          [](const PySessionOptions& options) { return enum_value("ExecutionMode", static_cast<int>(options.execution_mode)); },
          [](PySessionOptions& options, nb::handle value) {
            options.execution_mode = static_cast<ExecutionMode>(enum_number("ExecutionMode", value));
          },
          nb::for_getter(nb::sig("def execution_mode(self) -> treadle.enums.ExecutionMode")))
      .def_prop_rw(
          "execution_order", [](const PySessionOptions& options) { return enum_value("ExecutionOrder", options.execution_order); },
          [](PySessionOptions& options, nb::handle value) { options.execution_order = enum_number("ExecutionOrder", value); },
          nb::for_getter(nb::sig("def execution_order(self) -> treadle.enums.ExecutionOrder")))
      // Without meaning here; see docs/python.md.
      .def_rw("enable_cpu_mem_arena", &PySessionOptions::enable_cpu_mem_arena)
      .def_rw("enable_mem_pattern", &PySessionOptions::enable_mem_pattern)
      .def_rw("use_deterministic_compute", &PySessionOptions::use_deterministic_compute)
      .def_rw("use_per_session_threads", &PySessionOptions::use_per_session_threads)
      .def_rw("log_severity_level", &PySessionOptions::log_severity_level)
      .def_rw("log_verbosity_level", &PySessionOptions::log_verbosity_level)
      .def_rw("logid", &PySessionOptions::logid);
  session
      .def(
          "add_session_config_entry",
          [](PySessionOptions& options, const std::string& key, const std::string& value) { add_config_entry(options, key, value); },
          "key"_a, "value"_a)
      .def(
          "get_session_config_entry",
          [](const PySessionOptions& options, const std::string& key) { return config_entry(options.config, key); }, "key"_a)
      .def(
          "add_free_dimension_override_by_name",
          [](PySessionOptions& options, const std::string& name, int64_t extent) { options.free_dimension_overrides[name] = extent; },
          "name"_a, "extent"_a)
      .def(
          "add_initializer",
          [](PySessionOptions& options, const std::string& name, const OrtValue& value) {
            options.initializers[name] = value.datum.tensor();
          },
          "name"_a, "value"_a, "Replaces the model's initializer of that name.")
      .def("add_external_initializers", &add_initializers, "names"_a, "values"_a)
      .def(
          "add_free_dimension_override_by_denotation",
          [](PySessionOptions& options, const std::string& denotation, int64_t extent) {
            options.denotation_overrides[denotation] = extent;
          },
          "denotation"_a, "extent"_a)
      .def("add_external_initializers_from_files_in_memory", &add_external_files, "file_names"_a, "buffers"_a, "lengths"_a,
           "External data that is in memory already, by the location that the model names; shared, not copied.")
      .def(
          "set_load_cancellation_flag", [](PySessionOptions& options, bool value) { options.load_cancelled = value; }, "value"_a,
          "A session made with these options is refused.")
      .def_ro("_load_cancelled", &PySessionOptions::load_cancelled);
  // What chooses among execution providers and devices: there is one of each.
  session.def("has_providers", [](const PySessionOptions&) { return false; })
      .def(
          "add_provider",
          [](PySessionOptions&, const std::string& name, const std::map<std::string, std::string>&) { expect_provider(name); }, "name"_a,
          "options"_a, "CPUExecutionProvider; options of it are accepted.")
      .def("add_provider_for_devices", &add_provider_for_devices, "devices"_a, "options"_a,
           "The OrtEpDevice of the CPU; options of its provider are accepted.")
      .def(
          "set_provider_selection_policy", [](PySessionOptions&, nb::handle) {}, "policy"_a, "Accepted.")
      .def(
          "set_provider_selection_policy_delegate", [](PySessionOptions&, nb::handle) {}, "delegate"_a, "Accepted.")
      .def(
          "set_ep_context_data_read_func", [](PySessionOptions&, nb::handle) {}, "function"_a, "Accepted.")
      .def(
          "clear_ep_context_data_read_func", [](PySessionOptions&) {}, "Accepted.")
      .def(
          "register_custom_ops_library", [](PySessionOptions&, const std::string& path) { load_plugin(path); }, "path"_a,
          "Loads custom operators of a library that was built for ONNX Runtime; all sessions that are made afterwards have them.");
  // Treadle's own.
  session
      .def_rw("job", &PySessionOptions::job, nb::arg().none(),
              "The Job that runs belong to; None: the one that the environment names, if any.")
      .def_prop_rw(
          "thread_pool", [](const PySessionOptions& options) { return pool_object(options.thread_pool); },
          [](PySessionOptions& options, nb::handle pool) { options.thread_pool = pool_of(pool); }, nb::arg().none(),
          "A ThreadPool to use instead of the shared one.")
      .def_rw("set_denormal_as_zero", &PySessionOptions::set_denormal_as_zero, "Treat denormal numbers as zero.")
      .def_rw("strict_symbols", &PySessionOptions::strict_symbols,
              "Feeds that contradict a symbol of the model are an error, and not only a warning.")
      .def_rw("verify_plans", &PySessionOptions::verify_plans,
              "Prove before a run with new extents that every node will read what was written for it.")
      .def_rw("use_mmap", &PySessionOptions::use_mmap, "Map the model's files and use weights in place.")
      .def_rw("share_weights", &PySessionOptions::share_weights,
              "Hold weights and packed weights once that several sessions of the process have.")
      .def_rw("cache_dir", &PySessionOptions::cache_dir,
              "Folder of compiled models: the first session of a model writes one, later sessions map it; \"\": none.")
      .def_rw("compiled_model_filepath", &PySessionOptions::compiled_model_filepath, "File to write the compiled model to; \"\": none.")
      .def_rw("precision", &PySessionOptions::precision,
              "Arithmetic of products and convolutions: \"float32\", \"bfloat16\", \"bfloat16x3\", \"float16\", \"int8_weights\", or "
              "\";\"-separated "
              "entries "
              "PATTERN=PRECISION; see docs/precision.md.")
      .def_rw("max_weight_expansion", &PySessionOptions::max_weight_expansion,
              "Largest size of a convolution's transformed weights, relative to the weights: from 1 on, or math.inf.")
      .def_rw("conv_rates", &PySessionOptions::conv_rates,
              "File with the speeds by which convolutions choose their algorithm, from `bench_conv --calibrate`; \"\": built-in speeds.")
      .def_rw("disabled_passes", &PySessionOptions::disabled_passes, "Names of passes of the graph optimiser to leave out.")
      .def_rw("max_patches", &PySessionOptions::max_patches, "Stop the graph optimiser after that many patches.")
      .def_rw("config", &PySessionOptions::config)
      .def_prop_rw(
          "training_mode", [](const PySessionOptions& options) { return options.mode == SessionMode::training; },
          [](PySessionOptions& options, bool training) { options.mode = training ? SessionMode::training : SessionMode::inference; },
          "Leave out the passes that are valid for inference only.");

  nb::class_<PyRunOptions>(module, "RunOptions")
      .def(nb::init<>())
      .def_rw("log_severity_level", &PyRunOptions::log_severity_level)
      .def_rw("log_verbosity_level", &PyRunOptions::log_verbosity_level)
      .def_rw("logid", &PyRunOptions::tag)
      .def_rw("only_execute_path_to_fetches", &PyRunOptions::only_execute_path_to_fetches, "No effect: nothing else is ever run.")
      .def_prop_rw(
          "terminate", [](const PyRunOptions& options) { return options.terminate.load(); },
          [](PyRunOptions& options, bool value) { options.terminate = value; },
          "Ends the runs that use these options; may be set from any thread.")
      .def_rw("cancel_token", &PyRunOptions::cancel_token, nb::arg().none(), "A CancelToken, or None.")
      .def_rw("targets", &PyRunOptions::targets, "Nodes or values to compute without fetching them.")
      .def_prop_rw(
          "check_finite", [](const PyRunOptions& options) { return finite_check_name(options.check_finite); },
          [](PyRunOptions& options, const std::string& name) { options.check_finite = finite_check_from(name); },
          "\"off\", \"nan\" or \"all\": end the run at the first node with NaN, or with NaN or an infinity, among its outputs.")
      .def_rw("dump_folder", &PyRunOptions::dump_folder, "Folder to write inputs and outputs of nodes to, as ONNX tensors.")
      .def_rw("dump_pattern", &PyRunOptions::dump_pattern, "Pattern of the names of nodes to dump: * and ?")
      .def_prop_rw(
          "on_metadata", [](const PyRunOptions& options) { return options.metadata_callback; },
          [](PyRunOptions& options, nb::object callback) { set_metadata_callback(options, std::move(callback)); }, nb::arg().none(),
          "Called with a RunMetadata at the end of each run.")
      .def_prop_rw(
          "thread_pool", [](const PyRunOptions& options) { return pool_object(options.thread_pool); },
          [](PyRunOptions& options, nb::handle pool) { options.thread_pool = pool_of(pool); }, nb::arg().none(),
          "A ThreadPool for these runs, which use at most as many of its threads as the session has.")
      .def_prop_rw(
          "output_allocators",
          [](const PyRunOptions& options) {
            std::map<std::string, PyAllocator> allocators;
            for (const auto& [name, allocator] : options.output_allocators) allocators[name] = {allocator};
            return allocators;
          },
          [](PyRunOptions& options, const std::map<std::string, PyAllocator>& allocators) {
            options.output_allocators.clear();
            for (const auto& [name, given] : allocators) options.output_allocators[name] = given.allocator;
          },
          "The treadle.memory.Allocator of outputs, by name; one that is no output of the run, or is bound to memory, is an error.")
      .def_rw("output_devices", &PyRunOptions::output_devices,
              "Where outputs are after the run, by name: a device as sessions call it. run_with_ort_values gives them. A name that is no "
              "output of the run, or is bound to memory, is an error.")
      .def_rw("deadline_ms", &PyRunOptions::deadline_ms, "Milliseconds from the start of a run after which it fails; 0: none.")
      .def(
          "add_active_adapter",
          [](PyRunOptions& options, const LoraAdapter& adapter) {
            if (!adapter.adapter) throw Error(ErrorCode::invalid_argument, "the adapter is empty: Load() reads one");
            options.adapters.push_back(adapter.adapter);
          },
          "adapter"_a, "Feeds the adapter's parameters to runs with these options, besides their own feeds.")
      .def(
          "add_run_config_entry",
          [](PyRunOptions& options, const std::string& key, const std::string& value) { options.config[key] = value; }, "key"_a, "value"_a)
      .def(
          "get_run_config_entry", [](const PyRunOptions& options, const std::string& key) { return config_entry(options.config, key); },
          "key"_a);
}

}  // namespace treadle::python
