// Binds Executor, and ExecutorGraphs, the compiled graphs that several executors share.
#include "treadle/executor.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "datum.h"
#include "numpy.h"
#include "session.h"

namespace treadle::python {
namespace {

using train::Executor;
using train::ExecutorGraphs;
using train::Feeds;
using train::GradientRequests;
using train::NamedTensors;

GradientRequests requests_from(const std::map<std::string, std::string>& texts) {
  GradientRequests made;
  for (const auto& [argument, text] : texts) made.emplace(argument, train::gradient_request_named(text));
  return made;
}

// Makes feeds from a dict of arrays. Uses the memory of contiguous arrays, and copies other arrays.
Feeds feeds_from(const nb::dict& values) {
  Feeds made;
  for (auto [name, value] : values) made.emplace(string_from_python(name), datum_from_python(value, "", nullptr));
  return made;
}

nb::dict arrays_of(const NamedTensors& tensors) {
  nb::dict made;
  for (const auto& [name, tensor] : tensors) made[string_to_python(name)] = array_from_tensor(tensor);
  return made;
}

nb::list outputs_of(const Executor& executor) {
  nb::list made;
  for (const Datum& output : executor.outputs()) made.append(datum_to_python(output));
  return made;
}

void make_graphs(ExecutorGraphs* self, const Model& model, const PySessionOptions* options, const std::vector<std::string>& row_gradients,
                 const nb::object& make_session) {
  std::optional<SessionOptions> session;
  if (options) session = with_warnings(*options);
  new (self) ExecutorGraphs(model, session, row_gradients, [&make_session] {
    nb::object made = make_session();
    Session* const session_of = &nb::cast<PySession&>(made).session;
    return std::shared_ptr<Session>(session_of, [kept = keep(made)](Session*) {});
  });
}

// Sets the options that bind() and simple_bind() share.
// @param request  how a backward pass writes the gradients of float32 arguments that `requests` does not name
void set_sharing(train::BindOptions& options, const std::string& request, const std::map<std::string, std::string>& requests,
                 const Executor* shared, const std::optional<std::vector<std::string>>& shared_names) {
  options.request = train::gradient_request_named(request);
  options.requests = requests_from(requests);
  options.shared = shared;
  options.shared_names = shared_names;
}

std::map<std::string, Shape> shapes_from(const std::map<std::string, std::vector<int64_t>>& extents) {
  std::map<std::string, Shape> made;
  for (const auto& [name, shape] : extents) made.emplace(name, Shape(std::span<const int64_t>(shape)));
  return made;
}

Executor bind(const ExecutorGraphs& graphs, const nb::dict& arguments, const nb::dict& gradients, const std::string& request,
              const std::map<std::string, std::string>& requests, const nb::dict& states, const Executor* shared,
              const std::optional<std::vector<std::string>>& shared_names) {
  train::BindOptions options;
  set_sharing(options, request, requests, shared, shared_names);
  options.gradients = feeds_from(gradients);
  for (auto [name, value] : states) options.states.emplace(string_from_python(name), tensor_from_array(value));
  return Executor(graphs, feeds_from(arguments), options);
}

// Uses only the arrays of `buffer` that are C-contiguous, aligned and writable. The executor's new arrays replace other arrays in `buffer`.
Executor simple_bind(const ExecutorGraphs& graphs, const std::map<std::string, std::vector<int64_t>>& shapes, const nb::dict& dtypes,
                     const std::string& request, const std::map<std::string, std::string>& requests, std::optional<nb::dict> buffer,
                     const Executor* shared, const std::optional<std::vector<std::string>>& shared_names) {
  train::SimpleBindOptions options;
  set_sharing(options, request, requests, shared, shared_names);
  for (auto [name, dtype] : dtypes) options.dtypes.emplace(string_from_python(name), dtype_from_python(dtype));
  NamedTensors tensors;
  if (buffer) {
    options.shared_buffer = &tensors;
    for (auto [name, array] : *buffer)
      if (nb::cast<bool>(array.attr("flags").attr("carray"))) tensors.emplace(string_from_python(name), tensor_from_array(array));
  }
  const NamedTensors before = tensors;
  Executor made = Executor::simple_bind(graphs, shapes_from(shapes), options);
  for (const auto& [name, tensor] : tensors)
    if (const auto old = before.find(name); old == before.end() || old->second.raw() != tensor.raw())
      (*buffer)[string_to_python(name)] = array_from_tensor(tensor);
  return made;
}

nb::dict objects_of(const Feeds& values) {
  nb::dict made;
  for (const auto& [name, value] : values) made[string_to_python(name)] = datum_to_python(value);
  return made;
}

std::map<std::string, std::string> requests_of(const Executor& executor) {
  std::map<std::string, std::string> made;
  for (const auto& [name, request] : executor.requests()) made.emplace(name, train::name_of(request));
  return made;
}

void backward(Executor& executor, const nb::list& head_gradients) {
  std::vector<Tensor> heads;
  for (nb::handle gradient : head_gradients) heads.push_back(tensor_from_array(gradient));
  nb::gil_scoped_release release;
  executor.backward(heads);
}

train::ForwardMode mode_of(bool is_train) { return is_train ? train::ForwardMode::train : train::ForwardMode::predict; }

}  // namespace

void register_executor(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<ExecutorGraphs>(module, "ExecutorGraphs")
      .def("__init__", &make_graphs, "model"_a, "options"_a.none(), "row_gradients"_a, "make_session"_a)
      .def_prop_ro("parameters", [](const ExecutorGraphs& self) { return arrays_of(self.parameters()); })
      .def_prop_ro("states", [](const ExecutorGraphs& self) { return arrays_of(self.states()); })
      .def_prop_ro("output_names", &ExecutorGraphs::output_names)
      .def(
          "training",
          [](const ExecutorGraphs& self, const std::map<std::string, std::string>& requests) -> train::JointModule& {
            return self.training(requests_from(requests));
          },
          "requests"_a, nb::rv_policy::reference_internal)
      .def_prop_ro(
          "evaluation", [](const ExecutorGraphs& self) { return self.evaluation(); }, nb::rv_policy::reference_internal)
      .def("end_profiling", &ExecutorGraphs::end_profiling, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("memory_bytes", &ExecutorGraphs::memory_bytes)
      .def("optimized_model", [](const ExecutorGraphs& self) {
        const std::string bytes = self.optimized_model();
        return nb::bytes(bytes.data(), bytes.size());
      });
  nb::class_<Executor>(module, "Executor")
      .def_static("bind", &bind, "graphs"_a, "arguments"_a, "gradients"_a, "request"_a, "requests"_a, "states"_a, "shared"_a.none(),
                  "shared_names"_a.none())
      .def_static("simple_bind", &simple_bind, "graphs"_a, "shapes"_a, "dtypes"_a, "request"_a, "requests"_a, "buffer"_a.none(),
                  "shared"_a.none(), "shared_names"_a.none())
      .def(
          "reshape",
          [](const Executor& self, const std::map<std::string, std::vector<int64_t>>& shapes, bool partial_shaping, bool allow_up_sizing) {
            return self.reshape(shapes_from(shapes), {.partial_shaping = partial_shaping, .allow_up_sizing = allow_up_sizing});
          },
          "shapes"_a, "partial_shaping"_a, "allow_up_sizing"_a)
      .def_prop_ro("arguments", [](const Executor& self) { return objects_of(self.arguments()); })
      .def_prop_ro("gradients", [](const Executor& self) { return objects_of(self.gradients()); })
      .def_prop_ro("states", [](const Executor& self) { return arrays_of(self.states()); })
      .def_prop_ro("requests", &requests_of)
      .def(
          "forward",
          [](Executor& self, bool is_train) {
            {
              nb::gil_scoped_release release;
              self.forward(mode_of(is_train));
            }
            return outputs_of(self);
          },
          "is_train"_a)
      .def(
          "partial_forward", [](Executor& self, size_t step, bool is_train) { return self.partial_forward(step, mode_of(is_train)); },
          "step"_a, "is_train"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("backward", &backward, "head_gradients"_a)
      .def_prop_ro("outputs", &outputs_of)
      .def(
          "gradient", [](const Executor& self, const std::string& name) { return datum_to_python(self.gradients().at(name)); }, "name"_a)
      .def(
          "state", [](const Executor& self, const std::string& name) { return array_from_tensor(self.states().at(name)); }, "name"_a)
      .def(
          "set_argument",
          [](Executor& self, const std::string& name, nb::handle value) { self.set_argument(name, datum_from_python(value, "", nullptr)); },
          "name"_a, "value"_a)
      .def(
          "set_gradient",
          [](Executor& self, const std::string& name, nb::handle value) { self.set_gradient(name, datum_from_python(value, "", nullptr)); },
          "name"_a, "value"_a)
      .def(
          "set_state", [](Executor& self, const std::string& name, nb::handle value) { self.set_state(name, tensor_from_array(value)); },
          "name"_a, "value"_a);
}

}  // namespace treadle::python
