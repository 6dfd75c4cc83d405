// Defines the extension module treadle._treadle, on which the Python package treadle/ builds its interfaces.
#include "bindings.h"

namespace treadle::python {
void register_operators(nb::module_& module);
}

NB_MODULE(_treadle, module) {
  using namespace treadle::python;
  // nanobind must not report leaks, because users cannot prevent that an object and its callback refer to each other when the script ends.
  nanobind::set_leak_warnings(false);
  module.doc() = "The Treadle library as Python objects; use the package treadle.";
  module.def("version", [] { return std::string(treadle::version()); });
  register_errors(module);
  register_sharing(module);
  register_metrics(module);
  register_memory(module);
  register_options(module);
  register_model(module);
  register_ort_value(module);
  register_sparse_tensor(module);
  register_adapter(module);
  register_session(module);
  register_io_binding(module);
  register_partial_run(module);
  register_control(module);
  register_engine(module);
  register_stateful_run(module);
  register_communicator(module);
  register_train(module);
  register_joint_module(module);
  register_executor(module);
  register_plugin(module);
  register_operators(module);
  register_quantize(module);
  register_profile(module);
  register_python_calls(module);
  register_explain(module);
  register_command_line(module);
}
