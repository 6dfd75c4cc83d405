// Binds JointModule, a graph with forward and backward passes, and the runs of such a graph.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "datum.h"
#include "dlpack.h"
#include "numpy.h"
#include "treadle/sharing.h"
#include "treadle/train.h"

namespace treadle::python {
namespace {

using train::Feeds;
using train::JointModule;
using train::NamedTensors;

nb::dict dict_of(const NamedTensors& tensors) {
  nb::dict dict;
  for (const auto& [name, tensor] : tensors) dict[string_to_python(name)] = array_from_tensor(tensor);
  return dict;
}

// Makes feeds that keep the arrays alive, because the run may still wait at its Yield node when this function has returned.
JointModule::Run begin(JointModule& module, const nb::dict& feeds, const PyRunOptions* options) {
  Feeds made;
  for (auto [name, value] : feeds) made.emplace(string_from_python(name), datum_from_python(value, "", nullptr));
  nb::gil_scoped_release release;
  return module.begin(made, options);
}

JointModule::Run forward(JointModule& module, const nb::dict& feeds, const PyRunOptions* options) {
  JointModule::Run run = begin(module, feeds, options);
  nb::gil_scoped_release release;
  run.advance_steps(SIZE_MAX);
  return run;
}

nb::list run_outputs(const JointModule::Run& run) {
  nb::list list;
  for (const Tensor& output : run.outputs()) list.append(array_from_tensor(output));
  return list;
}

nb::dict backward(JointModule::Run& run, const nb::list& grad_outputs) {
  std::vector<Tensor> made;
  for (nb::handle value : grad_outputs) made.push_back(tensor_from_array(value));
  Feeds gradients;
  {
    nb::gil_scoped_release release;
    gradients = run.sparse_backward(made);
  }
  nb::dict dict;
  for (auto& [name, gradient] : gradients) dict[string_to_python(name)] = output_to_python(std::move(gradient));
  return dict;
}

Datum datum_from_feed(nb::handle value) {
  if (nb::isinstance<OrtValue>(value)) return nb::cast<OrtValue&>(value).datum;
  return tensor_from_capsule(value).contiguous();
}

// Makes tensors that use the memory of the caller's OrtValues or arrays.
NamedTensors held_from_dict(const nb::dict& values) {
  NamedTensors made;
  for (auto [name, value] : values) {
    const bool is_value = nb::isinstance<OrtValue>(value);
    made.emplace(string_from_python(name), is_value ? nb::cast<OrtValue&>(value).datum.tensor() : tensor_from_array(value));
  }
  return made;
}

// Makes a DLPack capsule. Copies read-only memory (of a constant that is an output), because other frameworks write to tensors they
// receive.
nb::object capsule_of(const Tensor& tensor) { return capsule_from_tensor(tensor.storage()->writable() ? tensor : tensor.clone(), false); }

// @param feeds  values in the order of the module's inputs  @return the run, and its outputs as DLPack capsules
nb::tuple forward_in_order(JointModule& module, const nb::list& feeds, std::optional<uint64_t> draw, bool update_states,
                           nb::handle options) {
  const RunOptions* of_run = options.is_none() ? nullptr : &nb::cast<const PyRunOptions&>(options);
  std::vector<Datum> made;
  made.reserve(feeds.size());
  for (nb::handle value : feeds) made.push_back(datum_from_feed(value));
  std::optional<JointModule::Run> run;
  {
    nb::gil_scoped_release release;
    run.emplace(module.forward_in_order(std::move(made), {.draw = draw, .update_states = update_states, .options = of_run}));
  }
  nb::list outputs;
  for (const Tensor& output : run->outputs()) outputs.append(capsule_of(output));
  nb::object made_run = nb::cast(std::move(*run));
  if (of_run) nb::keep_alive_obj(made_run, options);
  return nb::make_tuple(made_run, outputs);
}

// @param grad_outputs  DLPack capsules with the outputs' gradients; None: a gradient of zeros
void begin_backward(JointModule::Run& run, const nb::list& grad_outputs) {
  std::vector<Tensor> made;
  for (nb::handle value : grad_outputs) made.push_back(value.is_none() ? Tensor() : tensor_from_capsule(value).contiguous());
  nb::gil_scoped_release release;
  run.begin_backward(made);
}

// @return DLPack capsules with the requested gradients; None for an input that has no gradient
nb::list advance_backward(JointModule::Run& run, const std::vector<size_t>& gradients) {
  std::vector<Tensor> made;
  {
    nb::gil_scoped_release release;
    made = run.advance_backward(gradients);
  }
  nb::list list;
  for (const Tensor& gradient : made) list.append(gradient.defined() ? capsule_of(gradient) : nb::none());
  return list;
}

// Returns true if each container still holds the same objects (by identity) as when the caller made the snapshot. Each item of the snapshot
// is (container, keys, values); for a list, the keys are None.
bool holds_the_same(const nb::list& snapshot) {
  for (nb::handle entry : snapshot) {
    PyObject *container = PyTuple_GetItem(entry.ptr(), 0), *keys = PyTuple_GetItem(entry.ptr(), 1),
             *values = PyTuple_GetItem(entry.ptr(), 2);
    if (!values) throw nb::python_error();
    if (PyList_Check(container)) {
      const Py_ssize_t size = PyList_Size(container);
      if (size != PyTuple_Size(values)) return false;
      for (Py_ssize_t i = 0; i < size; ++i)
        if (PyList_GetItem(container, i) != PyTuple_GetItem(values, i)) return false;
      continue;
    }
    if (PyDict_Size(container) != PyTuple_Size(values)) return false;
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t position = 0;
    for (Py_ssize_t i = 0; PyDict_Next(container, &position, &key, &value); ++i)
      if (key != PyTuple_GetItem(keys, i) || value != PyTuple_GetItem(values, i)) return false;
  }
  return true;
}

}  // namespace

void register_joint_module(nb::module_& module) {
  using namespace nb::literals;
  module.def("holds_the_same", &holds_the_same, "snapshot"_a);
  nb::class_<JointModule::Run>(module, "JointRun")
      .def_prop_ro("outputs", &run_outputs)
      .def("advance_steps", &JointModule::Run::advance_steps, "count"_a = 1, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("steps_left", &JointModule::Run::steps_left)
      .def("backward", &backward, "grad_outputs"_a)
      .def(
          "move_feed", [](JointModule::Run& run, size_t input, nb::handle value) { run.move_feed(input, datum_from_feed(value).tensor()); },
          "input"_a, "value"_a)
      .def("begin_backward", &begin_backward, "grad_outputs"_a)
      .def("advance_backward", &advance_backward, "gradients"_a);
  nb::class_<JointModule>(module, "JointModule")
      .def(
          "__init__",
          [](JointModule* self, const Model& model, std::vector<std::string> outputs, std::vector<std::string> inputs,
             std::vector<std::string> parameters, std::vector<std::string> frozen, int num_threads, std::string device,
             std::map<std::string, std::string> group2ctx, std::map<std::string, std::string> argument_devices, std::shared_ptr<Job> job,
             const PySessionOptions* session, std::vector<std::string> plain_outputs, std::vector<std::string> states,
             bool unbiased_variance, bool zero_gradients, bool forward_only, bool inference, const nb::dict& held,
             std::vector<std::string> sparse_gradients) {
            train::JointOptions options{.outputs = std::move(outputs),
                                        .inputs = std::move(inputs),
                                        .parameters = std::move(parameters),
                                        .frozen = std::move(frozen),
                                        .plain_outputs = std::move(plain_outputs),
                                        .states = std::move(states),
                                        .unbiased_variance = unbiased_variance,
                                        .sparse_gradients = std::move(sparse_gradients),
                                        .zero_gradients = zero_gradients,
                                        .forward_only = forward_only,
                                        .inference = inference,
                                        .held = held_from_dict(held)};
            if (session) options.session = with_warnings(*session);
            if (num_threads > 0) options.session.intra_op_num_threads = num_threads;
            if (!device.empty()) options.session.device = std::move(device);
            if (!group2ctx.empty()) options.session.group2ctx = std::move(group2ctx);
            if (!argument_devices.empty()) options.session.argument_devices = std::move(argument_devices);
            if (job) options.session.job = std::move(job);
            new (self) JointModule(model, options);
          },
          "model"_a, "outputs"_a, "inputs"_a, "parameters"_a, "frozen"_a, "num_threads"_a, "device"_a = "",
          "group2ctx"_a = std::map<std::string, std::string>(), "argument_devices"_a = std::map<std::string, std::string>(),
          "job"_a.none() = nb::none(), "session"_a.none() = nb::none(), "plain_outputs"_a = std::vector<std::string>(),
          "states"_a = std::vector<std::string>(), "unbiased_variance"_a = false, "zero_gradients"_a = true, "forward_only"_a = false,
          "inference"_a = false, "held"_a = nb::dict(), "sparse_gradients"_a = std::vector<std::string>())
      .def("forward", &forward, "feeds"_a, "options"_a.none() = nb::none(), nb::keep_alive<0, 3>())
      .def("begin", &begin, "feeds"_a, "options"_a.none() = nb::none(), nb::keep_alive<0, 3>())
      .def("forward_in_order", &forward_in_order, "feeds"_a, "draw"_a.none() = nb::none(), "update_states"_a = true,
           "options"_a.none() = nb::none())
      .def(
          "hold", [](JointModule& self, const nb::dict& tensors) { self.hold(held_from_dict(tensors)); }, "tensors"_a)
      .def_prop_ro("held_names", &JointModule::held_names)
      .def_prop_ro("input_names", &JointModule::input_names)
      .def_prop_ro("gradient_names", &JointModule::gradient_names)
      .def("gradient_groups", &JointModule::gradient_groups, "group_bytes"_a)
      .def_prop_ro("is_random", &JointModule::is_random)
      .def("close", &JointModule::close, "timeout_ms"_a = -1, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("closed", &JointModule::closed)
      .def("memory_statistics", [](const JointModule& self) { return memory_dict(self.memory_statistics()); })
      .def("set_memory_limit", &JointModule::set_memory_limit, "limit_bytes"_a)
      .def("trim", &JointModule::trim, nb::call_guard<nb::gil_scoped_release>())
      .def("end_profiling", &JointModule::end_profiling)
      .def_prop_ro("output_names", &JointModule::output_names)
      .def_prop_ro("parameters", [](const JointModule& self) { return dict_of(self.parameters()); })
      .def_prop_ro("states", [](const JointModule& self) { return dict_of(self.states()); })
      .def("save", &JointModule::save, "path"_a, "metadata"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "to_bytes",
          [](const JointModule& self, const train::Metadata& metadata) {
            const std::string bytes = self.to_bytes(metadata);
            return nb::bytes(bytes.data(), bytes.size());
          },
          "metadata"_a);
}

}  // namespace treadle::python
