// PartialRun: a run that stops at every Yield, hands values out and takes values in.
#include "datum.h"
#include "session.h"

namespace treadle::python {
namespace {

// A run that Python resumes holds its feeds itself.
PartialRun start_partial(const PySession& self, const nb::dict& feeds) {
  std::map<std::string, Datum> made = feeds_from_python(self, feeds, nullptr);
  nb::gil_scoped_release release;
  return self.session.partial_run(made);
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

nb::list partial_outputs(PartialRun& run) {
  nb::list list;
  for (Datum& output : run.outputs()) list.append(output_to_python(std::move(output)));
  return list;
}

}  // namespace

void register_partial_run(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<PartialRun>(module, "PartialRun", "A run that stops at every treadle.Yield node. Of one thread at a time.")
      .def("advance", &PartialRun::advance, nb::call_guard<nb::gil_scoped_release>(),
           "Runs to the next Yield or to the end; true at the end.")
      .def("yielded", &yielded, "At a Yield: the values it hands out, by name.")
      .def("resume", &resume, "values"_a, "At a Yield: hands values in (one per output of the Yield) and goes on; true at the end.")
      .def_prop_ro("finished", &PartialRun::finished)
      .def("outputs", &partial_outputs, "At the end: the outputs, in the order of the session's.");
  module.def("start_partial_run", &start_partial, "session"_a, "input_feed"_a, nb::keep_alive<0, 1>());
}

}  // namespace treadle::python
