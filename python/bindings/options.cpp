// Binds SessionOptions and RunOptions, with ONNX Runtime's names and defaults.
#include "session/options.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include <cctype>
#include <cmath>
#include <stdexcept>
#include <variant>

#include "datum.h"
#include "gpu/gpu_type.h"
#include "option_attributes.h"
#include "ort_api/api.h"
#include "ort_api/providers.h"
#include "treadle/sharing.h"

namespace treadle::python {

nb::object enum_value(const char* name, int value) { return nb::module_::import_("treadle.enums").attr(name)(value); }

int enum_number(const char* name, nb::handle value) {
  return nb::cast<int>(nb::object(nb::module_::import_("treadle.enums").attr(name)(value).attr("value")));
}

std::string sentence(const OptionInfo& row) {
  std::string text(row.text);
  const bool says_type = row.form == OptionForm::integer || row.form == OptionForm::choice || row.least > -INFINITY || row.most < INFINITY;
  const std::string type = row.type_text();
  const bool is_list =
      row.form == OptionForm::names || row.form == OptionForm::reals || row.form == OptionForm::extents || row.form == OptionForm::devices;
  if (!row.type.empty() || says_type) text += " (" + (is_list ? type.substr(0, type.find(", separated by")) : type) + ")";
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text + ".";
}

namespace {

std::string config_entry(const std::map<std::string, std::string>& config, const std::string& key) {
  auto found = config.find(key);
  if (found == config.end()) throw std::runtime_error("there is no configuration entry \"" + key + "\"");
  return found->second;
}

// Sets the callback. It needs no reference of its own to the function, because a run keeps its options alive, and they hold the function.
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

void add_external_values(PySessionOptions& options, const std::vector<std::string>& names, const std::vector<OrtValue>& values) {
  if (names.size() != values.size())
    throw Error(ErrorCode::invalid_argument,
                std::to_string(names.size()) + " names for " + std::to_string(values.size()) + " initializers");
  for (size_t i = 0; i < names.size(); ++i) options.external_values[names[i]] = values[i].datum.tensor();
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
    options.external_files[names[i]] = Storage::borrow_read_only(storage->data(), lengths[i], [storage] {});
  }
}

using ProviderOptions = std::map<std::string, std::string>;

// Uses only the provider that is added first: the CPU provider computes every node, and beside another provider, the CPU computes the rest.
void add_provider(PySessionOptions& options, const std::string& name, const ProviderOptions& given) {
  const char* const provider = ort::find_provider(name);
  if (!provider)
    throw std::runtime_error("Unknown Provider Type: " + name + "; there are " + ort::kVulkanProvider + " and " + ort::kCpuProvider);
  if (!options.provider) ort::use_provider(options, options.provider = provider, given);
}

void add_provider_for_devices(PySessionOptions& options, nb::sequence devices, const ProviderOptions& given) {
  if (nb::len(devices) == 0) throw Error(ErrorCode::invalid_argument, "Must provide one or more OrtEpDevice instances.");
  const auto name_of = [](nb::handle device) { return nb::cast<std::string>(device.attr("ep_name")); };
  const auto options_of = [](nb::handle device) { return nb::cast<ProviderOptions>(device.attr("ep_options")); };
  for (nb::handle device : devices) {
    if (name_of(device) != name_of(devices[0]))
      throw Error(ErrorCode::invalid_argument, "All OrtEpDevice values in ep_devices must have the same execution provider.");
    if (options_of(device) != options_of(devices[0])) throw Error(ErrorCode::invalid_argument, "a session has one device of a provider");
  }
  ProviderOptions all = given;
  all.merge(options_of(devices[0]));
  add_provider(options, name_of(devices[0]), all);
}

// Returns a row for each GPU on which programs can run models: its name, its model, the PCI numbers of its vendor and of the device, and
// true if the GPU has its own memory.
std::vector<std::tuple<std::string, std::string, uint32_t, uint32_t, bool>> offered_gpus() {
  std::vector<std::tuple<std::string, std::string, uint32_t, uint32_t, bool>> gpus;
  for (const gpu::Gpu& gpu : gpu::offered_gpus()) gpus.emplace_back(gpu.name, gpu.model, gpu.vendor_id, gpu.device_id, gpu.is_discrete);
  return gpus;
}

// Sets the option for which a config entry stands. @return false if the entry stands for no option
bool set_by_entry(PySessionOptions& options, const std::string& key, const std::string& value) {
  OrtSessionOptions with;
  with.options = options;
  with.cpu_mem_arena = options.enable_cpu_mem_arena, with.mem_pattern = options.enable_mem_pattern;
  with.per_session_threads = options.use_per_session_threads, with.logger.id = options.logid;
  with.log_severity_level = options.log_severity_level, with.log_verbosity_level = options.log_verbosity_level;
  if (!ort::set_by_entry(with, key, value)) return false;
  static_cast<SessionOptions&>(options) = with.options;
  options.enable_cpu_mem_arena = with.cpu_mem_arena, options.enable_mem_pattern = with.mem_pattern;
  options.use_per_session_threads = with.per_session_threads, options.logid = with.logger.id;
  options.log_severity_level = with.log_severity_level, options.log_verbosity_level = with.log_verbosity_level;
  return true;
}

// Adds a config entry. Like ONNX Runtime, keeps the entry even if it sets an option, and raises RuntimeError for an invalid entry.
void add_entry(PySessionOptions& options, const std::string& key, const std::string& value) {
  constexpr size_t kMostBytes = 8192;
  try {
    if (value.size() > kMostBytes)
      throw Error(ErrorCode::invalid_argument, "Config value is longer than maximum length: " + std::to_string(kMostBytes) + ": that of " +
                                                   key + " has " + std::to_string(value.size()));
    if (set_by_entry(options, key, value))
      options.settings.insert_or_assign(key, value);
    else
      add_config_entry(options, key, value);
  } catch (const Error& error) {
    if (are_onnxruntimes()) throw std::runtime_error(error.what());
    throw;
  }
}

void register_library(PySessionOptions& options, const std::string& path) {
  const auto domains = ort::operators_of_library(path);
  if (!domains) {
    try {
      return load_plugin(path);
    } catch (const Error& error) {
      raise_as("Fail", Error(error.code(), "Failed to load library " + path + " with error: " + error.what()));
    }
  }
  ort::register_operators(*domains);
  options.custom_op_domains.insert(options.custom_op_domains.end(), domains->begin(), domains->end());
}

// Registers the methods of SessionOptions. Options that are a single number, text or list are attributes instead.
void register_methods(nb::class_<PySessionOptions>& session, const Attributes<SessionOptions, PySessionOptions>& attributes) {
  using namespace nb::literals;
  session
      .def("add_session_config_entry", &add_entry, "key"_a, "value"_a,
           "An entry that stands for a setting, such as session.intra_op_num_threads, sets it.")
      .def(
          "get_session_config_entry",
          [](const PySessionOptions& options, const std::string& key) {
            return config_entry(options.settings.contains(key) ? options.settings : options.config, key);
          },
          "key"_a, "The value of an entry that was added.")
      .def(
          "add_free_dimension_override_by_name",
          [](PySessionOptions& options, const std::string& name, int64_t extent) { options.free_dimension_overrides[name] = extent; },
          "name"_a, "extent"_a, attributes.doc("free_dimension_overrides").c_str())
      .def(
          "add_initializer",
          [](PySessionOptions& options, const std::string& name, const OrtValue& value) {
            options.initializers[name] = value.datum.tensor();
          },
          "name"_a, "value"_a, "Replaces the model's initializer of that name.")
      .def("add_external_initializers", &add_external_values, "names"_a, "values"_a,
           "Values that external initializers of the model take, whose files are not looked for.")
      .def(
          "add_free_dimension_override_by_denotation",
          [](PySessionOptions& options, const std::string& denotation, int64_t extent) {
            options.denotation_overrides[denotation] = extent;
          },
          "denotation"_a, "extent"_a, attributes.doc("denotation_overrides").c_str())
      .def("add_external_initializers_from_files_in_memory", &add_external_files, "file_names"_a, "buffers"_a, "lengths"_a,
           "External data that is in memory already, by the location that the model names; shared, not copied.")
      .def(
          "set_load_cancellation_flag", [](PySessionOptions& options, bool value) { options.load_cancelled = value; }, "value"_a,
          "A session made with these options is refused.")
      .def_ro("_load_cancelled", &PySessionOptions::load_cancelled)
      .def("register_custom_ops_library", &register_library, "path"_a,
           "Loads custom operators of a library that was built for ONNX Runtime; all sessions that are made afterwards have them. One of "
           "a built-in operator's name replaces that in sessions with these options.");
}

constexpr const char* kKeptLogging = "Kept; messages go to the logger \"treadle\".";

// Registers options that exist for compatibility and have no effect (see docs/python.md), and methods for execution providers.
void register_kept(nb::class_<PySessionOptions>& session) {
  using namespace nb::literals;
  session
      .def_prop_rw(
          "execution_order", [](const PySessionOptions& options) { return enum_value("ExecutionOrder", options.execution_order); },
          [](PySessionOptions& options, nb::handle value) { options.execution_order = enum_number("ExecutionOrder", value); },
          nb::for_getter(nb::sig("def execution_order(self) -> treadle.enums.ExecutionOrder")),
          "Kept; the library orders nodes for the least memory.")
      .def_rw("enable_cpu_mem_arena", &PySessionOptions::enable_cpu_mem_arena, "Kept; every run has one arena.")
      .def_rw("enable_mem_pattern", &PySessionOptions::enable_mem_pattern, "Kept; arenas are planned before the first run.")
      .def_rw("use_deterministic_compute", &PySessionOptions::use_deterministic_compute, "Kept; results are always the same bits.")
      .def_rw("use_per_session_threads", &PySessionOptions::use_per_session_threads, "Kept; see thread_pool.")
      .def_rw("log_severity_level", &PySessionOptions::log_severity_level,
              "Lowest severity that is logged of what concerns the model: warnings up to 2, nothing above; -1: as the default logger.")
      .def_rw("log_verbosity_level", &PySessionOptions::log_verbosity_level, kKeptLogging)
      .def_rw("logid", &PySessionOptions::logid, kKeptLogging)
      .def(
          "has_providers", [](const PySessionOptions& options) { return ort::provider_of(options.device) != ort::kCpuProvider; },
          "True if a provider other than the CPU's was added to the options.")
      .def("add_provider", &add_provider, "name"_a, "options"_a,
           "VulkanExecutionProvider, with the option device_id, or CPUExecutionProvider, which every session has.")
      .def("add_provider_for_devices", &add_provider_for_devices, "devices"_a, "options"_a,
           "The provider of an OrtEpDevice, on that device.")
      .def(
          "set_provider_selection_policy", [](PySessionOptions&, nb::handle) {}, "policy"_a, "Accepted.")
      .def(
          "set_provider_selection_policy_delegate", [](PySessionOptions&, nb::handle) {}, "delegate"_a, "Accepted.")
      .def(
          "set_ep_context_data_read_func", [](PySessionOptions&, nb::handle) {}, "function"_a, "Accepted.")
      .def(
          "clear_ep_context_data_read_func", [](PySessionOptions&) {}, "Accepted.");
}

void register_session_options(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<PySessionOptions> session(module, "SessionOptions");
  session.def(nb::init<>()).def(nb::init<const PySessionOptions&>(), "other"_a);
  Attributes<SessionOptions, PySessionOptions> attributes(session, session_option_table());
  session
      .def_prop_rw(
          "allocator", [](const PySessionOptions& options) { return std::string(options.allocator ? options.allocator->name() : "plain"); },
          [](PySessionOptions& options, const std::variant<std::string, PyAllocator>& given) {
            const auto* kinds = std::get_if<std::string>(&given);
            options.allocator = kinds ? make_allocator(*kinds) : std::get<PyAllocator>(given).allocator;
          },
          (attributes.doc("allocator") + " Or a treadle.memory.Allocator, which several sessions may have.").c_str())
      .def_rw("job", &PySessionOptions::job, nb::arg().none(), attributes.doc("job").c_str())
      .def_prop_rw(
          "thread_pool", [](const PySessionOptions& options) { return pool_object(options.thread_pool); },
          [](PySessionOptions& options, nb::handle pool) { options.thread_pool = pool_of(pool); }, nb::arg().none(),
          nb::for_setter(nb::sig(setter_signature("thread_pool", "ThreadPool | None").c_str())), attributes.doc("thread_pool").c_str())
      .def_prop_rw(
          "config", [](const PySessionOptions& options) { return read_only(options.config); },
          [](PySessionOptions& options, const std::map<std::string, std::string>& config) {
            for (const auto& [key, value] : config) session_option_table().check_key(key);
            options.config = config;
          },
          nb::for_getter(nb::sig("def config(self) -> collections.abc.Mapping[str, str]")), attributes.doc("config").c_str())
      .def_prop_rw(
          "training_mode", [](const PySessionOptions& options) { return options.mode == SessionMode::training; },
          [](PySessionOptions& options, bool training) { options.mode = training ? SessionMode::training : SessionMode::inference; },
          "Leave out the passes that are valid for inference only.");
  attributes.add_rows();
  register_methods(session, attributes);
  register_kept(session);
}

void register_run_options(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<PyRunOptions> run(module, "RunOptions");
  Attributes<RunOptions, PyRunOptions> attributes(run, run_option_table());
  run.def(nb::init<>())
      .def_rw("log_severity_level", &PyRunOptions::log_severity_level, kKeptLogging)
      .def_rw("log_verbosity_level", &PyRunOptions::log_verbosity_level, kKeptLogging)
      .def_rw("only_execute_path_to_fetches", &PyRunOptions::only_execute_path_to_fetches, "No effect: nothing else is ever run.")
      .def_prop_rw(
          "terminate", [](const PyRunOptions& options) { return options.terminate.load(); },
          [](PyRunOptions& options, bool value) { options.terminate = value; }, attributes.doc("terminate").c_str())
      .def_rw("cancel_token", &PyRunOptions::cancel_token, nb::arg().none(), attributes.doc("cancel_token").c_str())
      .def_prop_rw(
          "on_metadata", [](const PyRunOptions& options) { return options.metadata_callback; },
          [](PyRunOptions& options, nb::object callback) { set_metadata_callback(options, std::move(callback)); }, nb::arg().none(),
          nb::for_setter(nb::sig(setter_signature("on_metadata", "collections.abc.Callable[[RunMetadata], None] | None").c_str())),
          attributes.doc("on_metadata").c_str())
      .def_prop_rw(
          "thread_pool", [](const PyRunOptions& options) { return pool_object(options.thread_pool); },
          [](PyRunOptions& options, nb::handle pool) { options.thread_pool = pool_of(pool); }, nb::arg().none(),
          nb::for_setter(nb::sig(setter_signature("thread_pool", "ThreadPool | None").c_str())), attributes.doc("thread_pool").c_str())
      .def_prop_rw(
          "output_allocators",
          [](const PyRunOptions& options) {
            std::map<std::string, PyAllocator> allocators;
            for (const auto& [name, allocator] : options.output_allocators) allocators[name] = {allocator};
            return read_only(allocators);
          },
          [](PyRunOptions& options, const std::map<std::string, PyAllocator>& allocators) {
            options.output_allocators.clear();
            for (const auto& [name, given] : allocators) options.output_allocators[name] = given.allocator;
          },
          nb::for_getter(nb::sig("def output_allocators(self) -> collections.abc.Mapping[str, Allocator]")),
          attributes.doc("output_allocators").c_str());
  attributes.add_rows();
  run.def(
         "add_active_adapter",
         [](PyRunOptions& options, const LoraAdapter& adapter) {
           if (!adapter.adapter) throw Error(ErrorCode::invalid_argument, "the adapter is empty: Load() reads one");
           options.adapters.push_back(adapter.adapter);
         },
         "adapter"_a, "Feeds the adapter's parameters to runs with these options, besides their own feeds.")
      .def(
          "add_run_config_entry",
          [](PyRunOptions& options, const std::string& key, const std::string& value) { add_config_entry(options, key, value); }, "key"_a,
          "value"_a, "An entry of docs/options.md sets its option; others are kept.")
      .def(
          "get_run_config_entry", [](const PyRunOptions& options, const std::string& key) { return config_entry(options.config, key); },
          "key"_a, "The value of an entry that was added.");
}

}  // namespace

void register_options(nb::module_& module) {
  module.def("offered_gpus", &offered_gpus,
             "Name, model, PCI's numbers of vendor and device, and whether it has memory of its own, for each GPU.");
  register_session_options(module);
  register_run_options(module);
  module.def("session_options", [] { return list_options(session_option_table()); });
  module.def("run_options", [] { return list_options(run_option_table()); });
}

}  // namespace treadle::python
