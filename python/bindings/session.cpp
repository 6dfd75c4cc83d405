// Binds the session, a model that is ready to run, under ONNX Runtime's names.
#include "session.h"

#include <nanobind/stl/tuple.h>

#include <stdexcept>

#include "core/base/fault.h"
#include "datum.h"
#include "ort_api/api.h"
#include "ort_api/providers.h"
#include "session/initializer_locations.h"
#include "session/model.h"

namespace treadle::python {

SessionOptions with_warnings(const PySessionOptions& options) {
  SessionOptions native = options;
  native.on_warning = [severity = options.log_severity_level](const std::string& text) {
    if (!Py_IsInitialized()) return;
    nb::gil_scoped_acquire gil;
    nb::module_::import_("treadle.environment").attr("_warn")(string_to_python(text), severity);
  };
  return native;
}

namespace {

// Checks that `feeds` and `apart` name all inputs except optional ones. Like ONNX Runtime, requires inputs that the requested outputs do
// not need.
void expect_all_inputs(const PySession& self, const nb::dict& feeds, const std::set<std::string>& apart) {
  std::string missing;
  for (const ValueInfo& info : self.inputs)
    if (!apart.contains(info.name) && !feeds.contains(info.name.c_str()) && info.type.compare(0, 8, "optional") != 0)
      missing += (missing.empty() ? "'" : ", '") + info.name + "'";
  if (missing.empty()) return;
  std::string given;
  for (nb::handle name : feeds.keys()) given += (given.empty() ? "" : ", ") + nb::cast<std::string>(nb::repr(name));
  throw nb::value_error(("Required inputs ([" + missing + "]) are missing from input feed ([" + given + "]).").c_str());
}

// Checks that no required input is missing. If the caller feeds inner values of the graph, the library checks this instead.
void check_complete(const PySession& self, const nb::dict& feeds, const std::set<std::string>& apart) {
  for (nb::handle key : feeds.keys()) {
    const std::string name = string_from_python(key);
    auto has_name = [&](const ValueInfo& info) { return info.name == name; };
    if (!self.types.contains(name) && std::none_of(self.outputs.begin(), self.outputs.end(), has_name)) return;
  }
  expect_all_inputs(self, feeds, apart);
}

// Returns the model with the custom operators of the libraries in the options.
Model with_operators(const Model& model, const PySessionOptions& options) {
  ort::register_operators(options.custom_op_domains);
  return ort::with_own_operators(model, options.custom_op_domains);
}

// Ends the profile and returns its file. Like ONNX Runtime, returns an empty name if there is no profile or if it has already ended.
std::string end_profiling(PySession& self) {
  try {
    return self.session.end_profiling();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    return {};
  }
}

}  // namespace

PySession::PySession(const Model& model, const PySessionOptions& options)
    : session(with_operators(model, options), with_warnings(options)), inputs(session.inputs()), outputs(session.outputs()) {
  for (const ValueInfo& info : inputs) types.emplace(info.name, info.type);
  for (const ValueInfo& info : session.overridable_initializers()) types.emplace(info.name, info.type);
}

std::string PySession::type_of(const std::string& name) const {
  auto found = types.find(name);
  return found == types.end() ? std::string() : found->second;
}

Datum feed_from_python(const std::string& name, nb::handle value, const std::string& type, BufferScope* scope) {
  try {
    return datum_from_python(value, type, scope);
  } catch (const Error& error) {
    throw Error(error.code(), "input \"" + name + "\": " + error.what());
  } catch (nb::python_error& error) {
    nb::raise_from(error, PyExc_ValueError, "input \"%s\" (%s): %s", name.c_str(), type.c_str(), nb::str(error.value()).c_str());
  }
}

std::map<std::string, Datum> feeds_from_python(const PySession& self, const nb::dict& feeds, BufferScope* scope,
                                               const std::set<std::string>& apart) {
  check_complete(self, feeds, apart);
  std::map<std::string, Datum> made;
  for (auto [key, value] : feeds) {
    std::string name = string_from_python(key);
    made.emplace(name, feed_from_python(name, value, self.type_of(name), scope));
  }
  for (const ValueInfo& info : self.inputs)
    if (!made.contains(info.name) && !apart.contains(info.name) && info.type.compare(0, 8, "optional") == 0)
      made.emplace(info.name, Optional{});
  return made;
}

std::set<std::string> names_in_adapters(const RunOptions* options) {
  std::set<std::string> names;
  for (const auto& adapter : options ? options->adapters : decltype(options->adapters)())
    for (const auto& [name, value] : adapter->parameters) names.insert(name);
  return names;
}

namespace {

std::vector<Datum> run(const PySession& self, const std::optional<std::vector<std::string>>& outputs, const nb::dict& given,
                       const std::map<std::string, Datum>& feeds, const PyRunOptions* options) {
  try {
    nb::gil_scoped_release release;
    return self.session.run(feeds, outputs ? std::span<const std::string>(*outputs) : std::span<const std::string>(), options);
  } catch (const Fault& fault) {
    if (fault.kind() == Fault::Kind::unknown_input)
      expect_all_inputs(self, given, names_in_adapters(options));  // reports missing inputs before the unknown one, like ONNX Runtime
    throw;
  }
}

nb::list run_on_objects(const PySession& self, const std::optional<std::vector<std::string>>& outputs, const nb::dict& feeds,
                        const PyRunOptions* options) {
  BufferScope scope;
  std::map<std::string, Datum> made = feeds_from_python(self, feeds, &scope, names_in_adapters(options));
  std::vector<Datum> results = run(self, outputs, feeds, made, options);
  made.clear();
  nb::list list;
  for (Datum& result : results) list.append(output_to_python(std::move(result)));
  return list;
}

// The order of the arguments follows ONNX Runtime's extension module, which some packages call directly.
nb::list run_on_values(const PySession& self, const nb::dict& feeds, const std::optional<std::vector<std::string>>& outputs,
                       const PyRunOptions* options) {
  std::map<std::string, Datum> made = feeds_from_python(self, feeds, nullptr, names_in_adapters(options));
  std::vector<Datum> results = run(self, outputs, feeds, made, options);
  made.clear();
  nb::list list;
  for (Datum& result : results) list.append(nb::cast(OrtValue{detach(std::move(result))}));
  return list;
}

void run_on_vector(const PySession& self, const PyRunOptions* options, const nb::sequence& names, const nb::sequence& feeds,
                   const std::vector<std::string>& fetch_names, nb::list fetches, nb::handle) {
  if (nb::len(names) != nb::len(feeds))
    throw Error(ErrorCode::invalid_argument,
                "there are " + std::to_string(nb::len(names)) + " names for " + std::to_string(nb::len(feeds)) + " feeds");
  nb::dict named;
  for (size_t i = 0; i < nb::len(names); ++i) named[names[i]] = feeds[i];
  const nb::list results = run_on_values(self, named, fetch_names, options);
  fetches.clear();
  fetches.extend(results);
}

void run_bound(const PySession& self, PyIoBinding& binding, const PyRunOptions* options) {
  nb::gil_scoped_release release;
  self.session.run(binding, options);
}

// Shows Python's garbage collector the monitor's function, which may refer back to the session.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const auto* session = nb::inst_ptr<PySession>(self);
  if (session->monitor) Py_VISIT(session->monitor->ptr());
  return 0;
}

int clear(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  auto* session = nb::inst_ptr<PySession>(self);
  session->session.set_monitor({});
  const std::shared_ptr<nb::object> last = std::move(session->monitor);
  return 0;
}

PyType_Slot session_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

// Returns a callback that calls the Python function `locate`, and converts the tuple (file, offset, size) that it returns.
LocateInitializer locator(const nb::object& locate) {
  if (locate.is_none()) return {};
  return [&locate](const std::string& name, const Tensor& value, const InitializerLocation* was) {
    const nb::object before =
        was ? nb::object(nb::make_tuple(string_to_python(was->file), was->offset_bytes, was->size_bytes)) : nb::object(nb::none());
    const nb::object place = locate(string_to_python(name), OrtValue{value}, before);
    std::optional<InitializerLocation> where;
    if (!place.is_none())
      where = {string_from_python(nb::object(place[0])), nb::cast<int64_t>(nb::object(place[1])), nb::cast<int64_t>(nb::object(place[2]))};
    return where;
  };
}

// Returns the options for a session: applies the options in the model's metadata, and the config entry that sets the processors of threads.
// @throws std::runtime_error for invalid entries, like onnxruntime
PySessionOptions with_entries(const Model& model, PySessionOptions& given) try {
  ort::apply_model_config(model.metadata(), given);
  PySessionOptions options = given;
  if (const auto found = given.config.find("session.intra_op_thread_affinities"); found != given.config.end()) {
    OrtThreads threads;
    threads.affinities = found->second;
    options.thread_pool = ort::make_pool(threads, options.intra_op_num_threads, " for intra op thread pool");
  }
  return options;
} catch (const ort::StatusError& error) {
  throw std::runtime_error(error.what());
}

}  // namespace

void register_session(nb::module_& module) {
  nb::class_<MemoryReport>(module, "MemoryReport")
      .def_ro("weight_bytes", &MemoryReport::weight_bytes)
      .def_ro("packed_bytes", &MemoryReport::packed_bytes)
      .def_ro("arena_bytes", &MemoryReport::arena_bytes)
      .def_ro("arena_lower_bound_bytes", &MemoryReport::arena_lower_bound_bytes)
      .def_ro("arena_sum_bytes", &MemoryReport::arena_sum_bytes)
      .def_ro("arena_in_order_bytes", &MemoryReport::arena_in_order_bytes)
      .def_ro("largest_node_bytes", &MemoryReport::largest_node_bytes);

  nb::class_<PySession>(module, "Session", nb::type_slots(session_slots),
                        "A model made ready to run. Any number of threads may run it at once.")
      .def(
          "__init__",
          [](PySession* self, const Model& model, PySessionOptions& options) {
            const PySessionOptions completed = with_entries(model, options);
            try {
              nb::gil_scoped_release release;
              new (self) PySession(model, completed);
            } catch (const Error& error) {
              if (are_onnxruntimes()) refuse_as_onnxruntime(error, [&] { ort::refuse_graph(error, model); });
              throw;
            }
          },
          nb::arg("model"), nb::arg("options"))
      .def("run", &run_on_objects, nb::arg("output_names").none(), nb::arg("input_feed"), nb::arg("run_options").none() = nb::none())
      .def("run_with_ort_values", &run_on_values, nb::arg("input_feed"), nb::arg("output_names").none(),
           nb::arg("run_options").none() = nb::none())
      .def("run_with_ortvaluevector", &run_on_vector, nb::arg("run_options").none(), nb::arg("feed_names"), nb::arg("feeds"),
           nb::arg("fetch_names"), nb::arg("fetches"), nb::arg("fetch_devices"))
      .def("run_with_iobinding", &run_bound, nb::arg("iobinding"), nb::arg("run_options").none() = nb::none())
      .def_prop_ro("inputs_meta", [](const PySession& self) { return self.inputs; })
      .def_prop_ro("outputs_meta", [](const PySession& self) { return self.outputs; })
      .def_prop_ro("overridable_initializers", [](const PySession& self) { return self.session.overridable_initializers(); })
      .def_prop_ro("model_meta", [](const PySession& self) { return self.session.model().metadata(); })
      .def(
          "to_text", [](const PySession& self, const std::string& stage) { return self.session.to_text(stage); }, nb::arg("stage"))
      .def(
          "optimized_model",
          [](const PySession& self, const nb::object& locate) {
            const std::string bytes = optimized_model(self.session, locator(locate));
            return nb::bytes(bytes.data(), bytes.size());
          },
          nb::arg("locate").none() = nb::none(),
          "`locate(name, value, read_from)` says where an initializer's bytes are, as a tuple of file, offset and size; None: in the "
          "model.")
      .def(
          "assigned_nodes",
          [](const PySession& self) {
            std::vector<std::tuple<std::string, std::string, std::string, std::string>> nodes;
            for (const AssignedNode& node : assigned_nodes(self.session))
              nodes.emplace_back(ort::provider_of(node.device), node.name, node.domain, node.op_type);
            return nodes;
          },
          "Provider, name, domain and operator of each node of the optimized graph, as its file has them.")
      .def(
          "memory_statistics", [](const PySession& self) { return memory_dict(self.session.memory_statistics()); },
          "Bytes by class (weights, packed, activations, scratch, io, other, total): now, and the most so far.")
      .def("reset_memory_peaks", [](const PySession& self) { self.session.reset_memory_peaks(); })
      .def(
          "set_memory_limit", [](const PySession& self, size_t limit_bytes) { self.session.set_memory_limit(limit_bytes); },
          nb::arg("limit_bytes"), "For later runs at once, for those under way at their next node.")
      .def("memory", [](const PySession& self) { return self.session.memory(); })
      .def("end_profiling", end_profiling)
      .def("get_profiling_start_time_ns", [](const PySession& self) { return self.session.profiling_start_ns(); });
}

}  // namespace treadle::python
