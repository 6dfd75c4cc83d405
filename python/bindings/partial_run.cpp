// Binds PartialRun, a run that pauses at every Yield node, where Python reads and supplies values.
#include "datum.h"
#include "session.h"

namespace treadle::python {
namespace {

struct PyValueCache {
  std::shared_ptr<ValueCache> values;
};

// Starts a partial run. Its feeds keep the arrays alive, because the run may continue after this call.
PartialRun start_partial(const PySession& self, const nb::dict& feeds, const PyValueCache* cache, const PyRunOptions* options) {
  std::set<std::string> may_be_later;
  for (const ValueInfo& info : self.inputs)
    if (!info.type.starts_with("optional")) may_be_later.insert(info.name);
  std::map<std::string, Datum> made = feeds_from_python(self, feeds, nullptr, may_be_later);
  nb::gil_scoped_release release;
  return self.session.partial_run(made, cache ? cache->values : nullptr, options);
}

nb::object cached(const PyValueCache& cache, const std::string& name) {
  auto found = cache.values->find(name);
  if (found == cache.values->end()) throw nb::key_error(name.c_str());
  return found->second.defined() ? datum_to_python(found->second) : nb::object(nb::none());
}

void set_cached(PyValueCache& cache, const std::string& name, nb::handle value) {
  Datum made;
  if (!value.is_none()) made = detach(datum_from_python(value, "", nullptr));
  (*cache.values)[name] = std::move(made);
}

nb::list cached_names(const PyValueCache& cache) {
  nb::list names;
  for (const auto& [name, value] : *cache.values) names.append(string_to_python(name));
  return names;
}

nb::dict yielded(const PartialRun& run) {
  nb::dict values;
  for (auto& [name, value] : run.yielded()) values[string_to_python(name)] = OrtValue{value};
  return values;
}

bool resume(PartialRun& run, const nb::list& values) {
  std::vector<Datum> made;
  for (nb::handle value : values) made.push_back(datum_from_python(value, "", nullptr));
  nb::gil_scoped_release release;
  return run.resume(made);
}

nb::list to_python(std::vector<Datum> values) {
  nb::list list;
  for (Datum& value : values) list.append(output_to_python(std::move(value)));
  return list;
}

nb::list partial_outputs(PartialRun& run) { return to_python(run.outputs()); }

void feed_later(PartialRun& run, const std::string& name, nb::handle value) { run.feed(name, datum_from_python(value, name, nullptr)); }

nb::list fetch_made(const PartialRun& run, const std::vector<std::string>& names) { return to_python(run.fetch(names)); }

}  // namespace

void register_partial_run(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<PyValueCache>(module, "ValueCache", "Values of nodes with one output, by name: those that are there are not computed again.")
      .def("__init__", [](PyValueCache* self) { new (self) PyValueCache{std::make_shared<ValueCache>()}; })
      .def("__getitem__", &cached, "name"_a, nb::sig("def __getitem__(self, name: str) -> object"))
      .def("__setitem__", &set_cached, "name"_a, "value"_a.none(), "None: the first run that computes the value puts it here.")
      .def("__delitem__", [](PyValueCache& cache, const std::string& name) { cache.values->erase(name); })
      .def("__contains__", [](const PyValueCache& cache, const std::string& name) { return cache.values->contains(name); })
      .def("__len__", [](const PyValueCache& cache) { return cache.values->size(); })
      .def("keys", &cached_names);

  nb::class_<PartialRun>(module, "PartialRun", "A run that stops at every treadle.Yield node. Of one thread at a time.")
      .def("advance", nb::overload_cast<>(&PartialRun::advance), nb::call_guard<nb::gil_scoped_release>(),
           "Runs to the next Yield, to the first node that reads a missing input, or to the end; true at the end.")
      .def("feed", &feed_later, "name"_a, "value"_a, "Gives an input that was left out at the start.")
      .def("fetch", &fetch_made, "names"_a, "Outputs that have been made.")
      .def("yielded", &yielded, "At a Yield: the values it hands out, by name.")
      .def("resume", &resume, "values"_a, "At a Yield: hands values in (one per output of the Yield) and goes on; true at the end.")
      .def("advance_until", &PartialRun::advance_until, "node"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("advance_steps", &PartialRun::advance_steps, "count"_a = 1, nb::call_guard<nb::gil_scoped_release>(),
           "Runs this many nodes, at most to the next Yield or the end; returns how many are left before that.")
      .def_prop_ro("steps_left", &PartialRun::steps_left, "Nodes before the next Yield or the end.")
      .def_prop_ro("finished", &PartialRun::finished)
      .def_prop_ro("at_yield", &PartialRun::at_yield)
      .def_prop_ro("cache", [](const PartialRun& run) { return PyValueCache{run.cache()}; })
      .def("outputs", &partial_outputs, "At the end: the outputs, in the order of the session's.");
  module.def("start_partial_run", &start_partial, "session"_a, "input_feed"_a, "cache"_a.none() = nb::none(),
             "options"_a.none() = nb::none(), nb::keep_alive<0, 1>(), nb::keep_alive<0, 4>());
}

}  // namespace treadle::python
