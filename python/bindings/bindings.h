// What the binding files share: each registers one class, and some convert values for the others.
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

struct OrtCustomOpDomain;  // of ort_api/custom_operator.h

namespace treadle::python {

/// A value that Python holds: ONNX Runtime's OrtValue.
struct OrtValue {
  Datum datum;
};

/// A plugin's shared object, or one with custom operators for ONNX Runtime. @throws Error
void load_plugin(const std::string& path);

/// ONNX Runtime's session options: ours, and those that have no meaning here but are kept.
struct PySessionOptions : SessionOptions {
  PySessionOptions() { profile_file_prefix = "onnxruntime_profile_"; }

  bool enable_cpu_mem_arena = true, enable_mem_pattern = true;
  bool use_deterministic_compute = false, use_per_session_threads = true;
  int execution_order = 0;
  int log_severity_level = -1, log_verbosity_level = 0;
  std::string logid;
  bool load_cancelled = false;
  std::map<std::string, std::shared_ptr<Storage>> external_files;
  std::map<std::string, Tensor> external_values;  // instead of what external initializers name
  std::vector<std::shared_ptr<OrtCustomOpDomain>> custom_op_domains;
  std::map<std::string, std::string> settings;  // config entries that stand for settings, as they were given
};

/// Warnings about the model go to Python's logging.
SessionOptions with_warnings(const PySessionOptions& options);

struct PyThreadPool {
  std::shared_ptr<ThreadPool> pool;
};

/// An allocator that Python made or named.
struct PyAllocator {
  std::shared_ptr<Allocator> allocator;
};

struct LoraAdapter {
  std::shared_ptr<const Adapter> adapter;  // null until it is loaded
};

struct PyRunOptions : RunOptions {
  nb::object metadata_callback = nb::none();  // what on_metadata calls
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

/// Bytes now and at most, by class.
nb::dict memory_dict(const MemoryStatistics& statistics);

/// A Python object that C++ may let go of on any thread.
std::shared_ptr<nb::object> keep(nb::object function);

/// Raises the exception class `name` of treadle.errors; errors of the loader mean another class than those of a run.
[[noreturn]] void raise_as(const char* name, const Error& error);
/// Whether a program that is written for ONNX Runtime runs here: it knows that one's classes of faults.
bool are_onnxruntimes();
/// Out of a catch clause: raises what ONNX Runtime raises for the StatusError that `refuse` throws, with the code of `error`.
/// @throws what else `refuse` does
void refuse_as_onnxruntime(const Error& error, const std::function<void()>& refuse);

/// All memory is the host's. @throws Error(not_implemented) for another device.
void expect_cpu(const std::string& device_type);
/// As sessions call it: "cpu", "sim", "sim:1".
std::string device_name(const std::string& device_type, int device_id);

}  // namespace treadle::python
