// Metrics of the process.
#include "treadle/metrics.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "bindings.h"

namespace treadle::python {
namespace {

nb::dict as_dict(const CacheStatistics& caches) {
  nb::dict made;
  made["hits"] = caches.hits, made["misses"] = caches.misses, made["evictions"] = caches.evictions, made["size"] = caches.size;
  made["binding_hits"] = caches.binding_hits, made["binding_misses"] = caches.binding_misses;
  made["memory_plans"] = caches.memory_plans;
  return made;
}

nb::dict as_dict(const ClientMetrics& client) {
  nb::dict made;
  made["client"] = client.client,
  made["model"] = nb::steal(PyUnicode_DecodeUTF8(client.model.data(), static_cast<Py_ssize_t>(client.model.size()), "replace"));
  made["clients"] = client.clients, made["runs_in_flight"] = client.runs_in_flight;
  made["runs"] = client.runs, made["run_seconds"] = client.run_seconds;
  nb::list durations;
  for (size_t k = 0; k < client.runs_by_duration.size(); ++k)
    durations.append(nb::make_tuple(k < kRunSecondsBounds.size() ? kRunSecondsBounds[k] : std::numeric_limits<double>::infinity(),
                                    client.runs_by_duration[k]));
  made["runs_by_duration"] = nb::tuple(durations);
  made["input_bytes"] = client.input_bytes, made["output_bytes"] = client.output_bytes;
  made["errors"] = client.errors, made["caches"] = as_dict(client.caches);
  nb::dict memory;
  for (size_t c = 0; c < kNumMemoryClasses; ++c)
    memory[std::string(memory_class_name(static_cast<MemoryClass>(c))).c_str()] = client.memory_bytes[c];
  made["memory_bytes"] = memory;
  return made;
}

nb::dict as_dict(const Metrics& metrics) {
  nb::dict made;
  nb::list clients;
  for (const ClientMetrics& client : metrics.clients) clients.append(as_dict(client));
  made["counting"] = metrics.counting, made["clients"] = clients, made["device_bytes"] = metrics.device_bytes;
  const SharedWeightsStatistics& shared = metrics.shared_weights;
  nb::dict weights;
  weights["constant_bytes"] = shared.constant_bytes, weights["packed_bytes"] = shared.packed_bytes;
  weights["hits"] = shared.hits, weights["misses"] = shared.misses;
  made["shared_weights"] = weights, made["jobs"] = metrics.jobs;
  return made;
}

Metrics read_released() {
  nb::gil_scoped_release released;
  return read_metrics();
}

}  // namespace

void register_metrics(nb::module_& module) {
  module.def("count_metrics", &count_metrics, nb::arg("on"));
  module.def("read_metrics", [] { return as_dict(read_released()); });
  module.def("metrics_to_prometheus", [] { return metrics_to_prometheus(read_released()); });
  // Its thread runs no Python code, so that waiting for it with the interpreter's lock is safe.
  nb::class_<MetricsReporter>(module, "MetricsReporter", "Writes the metrics of the process to a file.")
      .def(nb::init<std::string, double>(), nb::arg("path"), nb::arg("seconds"));
}

}  // namespace treadle::python
