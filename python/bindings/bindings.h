// Declarations shared by the binding files. Each file registers one class; some also convert values for the others.
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

/// A value that Python holds: ONNX Runtime's OrtValue.
struct OrtValue {
  Datum datum;
};

/// Loads a plugin's library, or a library with custom operators for ONNX Runtime. @throws Error
void load_plugin(const std::string& path);

/// ONNX Runtime's session options: those of Treadle, and those that have no effect here but keep their values.
struct PySessionOptions : SessionOptions {
  PySessionOptions() { profile_file_prefix = "onnxruntime_profile_"; }

  bool enable_cpu_mem_arena = true, enable_mem_pattern = true;
  bool use_deterministic_compute = false, use_per_session_threads = true;
  int execution_order = 0;
  int log_severity_level = -1, log_verbosity_level = 0;
  std::string logid;
  bool load_cancelled = false;
  std::map<std::string, std::shared_ptr<Storage>> external_files;
  std::map<std::string, Tensor> external_values;  // these values replace the data of external initializers
  std::vector<std::shared_ptr<OrtCustomOpDomain>> custom_op_domains;
  std::map<std::string, std::string> settings;  // config entries that set options, as the caller gave them
  const char* provider = nullptr;               // the provider that was added first; it is asked first for each node
};

/// Adds a callback that passes warnings about the model to Python's logging.
SessionOptions with_warnings(const PySessionOptions& options);

struct PyThreadPool {
  std::shared_ptr<ThreadPool> pool;
};

/// An allocator whose functions Python gave, or one that Python named.
struct PyAllocator {
  std::shared_ptr<Allocator> allocator;
};

struct LoraAdapter {
  std::shared_ptr<const Adapter> adapter;  // null until it is loaded
};

struct PyRunOptions : RunOptions {
  nb::object metadata_callback = nb::none();  // on_metadata() calls this function
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

/// Returns the bytes in use and the peak, by class of memory.
nb::dict memory_dict(const MemoryStatistics& statistics);

/// Wraps a Python object so that C++ may release it on any thread.
std::shared_ptr<nb::object> keep(nb::object function);

/// Raises the exception class of treadle.errors that is called `name`. For errors whose class depends on the caller: the same error gets
/// one class in loading and another in a run.
[[noreturn]] void raise_as(const char* name, const Error& error);
/// True if the program uses ONNX Runtime's interface, and therefore expects its exception classes.
bool are_onnxruntimes();
/// Called in a catch clause. `refuse` should throw a StatusError, which is raised as ONNX Runtime's exception with the code of `error`.
/// @throws any other exception of `refuse`
void refuse_as_onnxruntime(const Error& error, const std::function<void()>& refuse);

/// Accepts only host memory. @throws Error(not_implemented) for another device.
void expect_cpu(const std::string& device_type);
/// Returns the device's name as sessions use it: "cpu", "sim", "sim:1".
std::string device_name(const std::string& device_type, int device_id);

}  // namespace treadle::python
