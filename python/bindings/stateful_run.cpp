// Binds StatefulRun: runs for one sequence, each of which passes its states on to the next run.
#include "datum.h"
#include "session.h"

namespace treadle::python {
namespace {

struct PyStatefulRun : StatefulRun {
  PyStatefulRun(const PySession& owner, const std::map<std::string, std::string>& pairs, std::map<std::string, Datum> initial)
      : StatefulRun(owner.session, pairs_of(pairs), std::move(initial)), owner(owner) {
    for (const auto& pair : pairs) states.insert(pair.first);
  }
  static std::vector<StatePair> pairs_of(const std::map<std::string, std::string>& pairs) {
    std::vector<StatePair> list;
    for (const auto& [input, output] : pairs) list.push_back({input, output});
    return list;
  }
  const PySession& owner;
  std::set<std::string> states;
};

// Returns a copy of a value that becomes a state, because runs write to states.
Datum owned(const PySession& session, const std::string& name, nb::handle value) {
  Datum made = feed_from_python(name, value, session.type_of(name), nullptr);
  return made.is_tensor() ? Datum(made.tensor().clone()) : detach(std::move(made));
}

void make(PyStatefulRun* self, const PySession& session, const std::map<std::string, std::string>& pairs, const nb::dict& initial) {
  std::map<std::string, Datum> made;
  for (auto [key, value] : initial) {
    std::string name = string_from_python(key);
    made.emplace(name, owned(session, name, value));
  }
  new (self) PyStatefulRun(session, pairs, std::move(made));
}

nb::list run_states(PyStatefulRun& self, const std::optional<std::vector<std::string>>& outputs, const nb::dict& feeds,
                    const PyRunOptions* options) {
  BufferScope scope;
  std::set<std::string> apart = names_in_adapters(options);
  apart.insert(self.states.begin(), self.states.end());
  std::map<std::string, Datum> made = feeds_from_python(self.owner, feeds, &scope, apart);
  std::vector<Datum> results;
  {
    nb::gil_scoped_release release;
    results = self.run(made, outputs ? std::span<const std::string>(*outputs) : std::span<const std::string>(), options);
  }
  made.clear();
  nb::list list;
  for (Datum& result : results) list.append(output_to_python(std::move(result)));
  return list;
}

}  // namespace

void register_stateful_run(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<PyStatefulRun>(module, "StatefulRun", "Runs of one sequence whose states go from run to run. Of one thread at a time.")
      .def("__init__", &make, "session"_a, "pairs"_a, "initial"_a, nb::keep_alive<1, 2>())
      .def("run", &run_states, "output_names"_a.none(), "input_feed"_a, "run_options"_a.none() = nb::none(),
           "Computes outputs (None: all that are not states) and moves the states on. After an error they are those before the run.")
      .def(
          "state",
          [](const PyStatefulRun& self, const std::string& name) {
            Datum value = self.state(name);
            return datum_to_python(value.is_tensor() ? Datum(value.tensor().clone()) : detach(std::move(value)));
          },
          "name"_a, "A copy of the value that the input takes in the next run.")
      .def(
          "set_state",
          [](PyStatefulRun& self, const std::string& name, nb::handle value) { self.set_state(name, owned(self.owner, name, value)); },
          "name"_a, "value"_a, "What the input takes in the next run; copied.");
}

}  // namespace treadle::python
