// Declarations that the binding files share. Each of these files registers a class or a few; some files also convert values for others.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "treadle/datum.h"
#include "treadle/error.h"
#include "treadle/model.h"
#include "treadle/session.h"

namespace nb = nanobind;

struct OrtCustomOpDomain;  // defined in ort_api/custom_operator.h

namespace treadle::python {

/// The Python class OrtValue, which follows ONNX Runtime's class of that name: a value of any ONNX type.
struct OrtValue {
  Datum datum;
};

/// Loads the library of a Treadle plugin, or a library with custom operators for ONNX Runtime. @throws Error
void load_plugin(const std::string& path);

/// The Python class SessionOptions: Treadle's options, and ONNX Runtime's options that keep their values but have no effect here.
struct PySessionOptions : SessionOptions {
  PySessionOptions() { profile_file_prefix = "onnxruntime_profile_"; }

  bool enable_cpu_mem_arena = true, enable_mem_pattern = true;
  bool use_deterministic_compute = false, use_per_session_threads = true;
  int execution_order = 0;
  int log_severity_level = -1, log_verbosity_level = 0;
  std::string logid;
  bool load_cancelled = false;
  std::map<std::string, std::shared_ptr<Storage>> external_files;
  std::map<std::string, Tensor> external_values;  // values of external initializers by name; the loader reads no files for these
  std::vector<std::shared_ptr<OrtCustomOpDomain>> custom_op_domains;
  std::map<std::string, std::string> settings;  // config entries that have set options, as the caller wrote them
  const char* provider = nullptr;               // the execution provider that was added first; null: none
};

/// Returns the options with a callback that passes warnings about the model to Python's logging.
SessionOptions with_warnings(const PySessionOptions& options);

struct PyThreadPool {
  std::shared_ptr<ThreadPool> pool;
};

/// The Python class Allocator: an allocator that calls Python functions, or a built-in allocator that the caller has named.
struct PyAllocator {
  std::shared_ptr<Allocator> allocator;
};

struct LoraAdapter {
  std::shared_ptr<const Adapter> adapter;  // null until the caller loads a file
};

struct PyRunOptions : RunOptions {
  nb::object metadata_callback = nb::none();  // the Python function that on_metadata() calls
  int log_severity_level = -1, log_verbosity_level = 0;
  bool only_execute_path_to_fetches = false;
};

void register_errors(nb::module_& module);
void register_adapter(nb::module_& module);
void register_options(nb::module_& module);
void register_model(nb::module_& module);
void register_ort_value(nb::module_& module);
void register_sparse_tensor(nb::module_& module);
void register_session(nb::module_& module);
void register_io_binding(nb::module_& module);
void register_partial_run(nb::module_& module);
void register_memory(nb::module_& module);
void register_control(nb::module_& module);
void register_engine(nb::module_& module);
void register_stateful_run(nb::module_& module);
void register_joint_module(nb::module_& module);
void register_executor(nb::module_& module);
void register_communicator(nb::module_& module);
void register_train(nb::module_& module);
void register_trainer_options(nb::module_& module);
void register_plugin(nb::module_& module);
void register_quantize(nb::module_& module);
void register_command_line(nb::module_& module);
void register_profile(nb::module_& module);
void register_python_calls(nb::module_& module);
void register_explain(nb::module_& module);
void register_sharing(nb::module_& module);
void register_metrics(nb::module_& module);

/// Returns a dict from each class of memory to its bytes in use and their peak.
nb::dict memory_dict(const MemoryStatistics& statistics);

/// Returns a pointer to a Python object that any thread may release, with or without the GIL.
std::shared_ptr<nb::object> keep(nb::object function);

/// Raises the exception class `name` of treadle.errors. For errors whose class depends on the operation: the same error can have one class
/// when a model is loaded and another class in a run.
[[noreturn]] void raise_as(const char* name, const Error& error);
/// Returns true if the program imports Treadle as onnxruntime, and therefore expects ONNX Runtime's exception classes and messages.
bool are_onnxruntimes();
/// Raises ONNX Runtime's exception for a StatusError that `refuse` throws, with the code of `error`. Must be called in a catch clause,
/// because `refuse` may rethrow `error`. @throws any other exception of `refuse`
void refuse_as_onnxruntime(const Error& error, const std::function<void()>& refuse);

/// Checks that the device is the CPU. @throws Error(not_implemented) for another device.
void expect_cpu(const std::string& device_type);
/// Returns the name by which sessions know the device, such as "cpu", "sim" or "sim:1".
std::string device_name(const std::string& device_type, int device_id);

}  // namespace treadle::python
