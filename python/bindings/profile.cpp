// Binds profilers of sessions, trainers and joint modules, and ranges of the program.
#include "profile.h"

// Python.h must come before structmember.h, which depends on it.
#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>

#include "ranges.h"
#include "session.h"
#include "treadle/train.h"

namespace treadle::python {
namespace {

const Session& profiled(const PySession& self) { return self.session; }
const train::Trainer& profiled(const train::Trainer& self) { return self; }
const train::JointModule& profiled(const train::JointModule& self) { return self; }

template <typename Client>
void register_profiled(nb::module_& module) {
  module.def(
      "start_profiler",
      [](Client& self, uint64_t max_events, bool keep_last, bool memory, bool passes, bool kernel_phases, bool python_calls,
         std::string stream_to) {
        auto& client = const_cast<std::remove_cvref_t<decltype(profiled(self))>&>(profiled(self));
        return client.profiler({.max_events = max_events,
                                .keep_last = keep_last,
                                .memory = memory,
                                .kernel_phases = kernel_phases,
                                .python_calls = python_calls,
                                .stream_to = std::move(stream_to),
                                .passes = passes});
      },
      nb::arg("client"), nb::arg("max_events"), nb::arg("keep_last"), nb::arg("memory"), nb::arg("passes"), nb::arg("kernel_phases"),
      nb::arg("python_calls"), nb::arg("stream_to"), nb::keep_alive<0, 1>());
  module.def(
      "node_counters",
      [](const Client& self) {
        nb::gil_scoped_release released;
        return node_counters_to_json(profiled(self).node_counters());
      },
      nb::arg("client"));
  module.def(
      "reset_node_counters", [](const Client& self) { profiled(self).reset_node_counters(); }, nb::arg("client"));
}

PyProfile described_profile(Profile profile, const std::string& model, bool peaks) {
  ProfileContext context{.model = model};
  if (peaks) measure_peaks_for(profile, context);
  ProfileReport report = report_profile(profile, context);
  return {std::move(profile), std::move(report)};
}

PyProfile take_profile(const Profiler& profiler, const std::string& model, bool peaks) {
  nb::gil_scoped_release release;
  return described_profile(profiler.profile(), model, peaks);
}

PyProfile read_recording(const std::string& path, const std::string& model, bool peaks) {
  nb::gil_scoped_release release;
  return described_profile(read_profile_recording(path), model, peaks);
}

PyTypeObject *range_type = nullptr, *range_method_type = nullptr;

// A range of the program is a plain CPython object, because making an object of a nanobind class takes longer than a short range lasts.
// Reading __enter__ or __exit__ of a range returns the range itself, so that Python makes no bound methods.
struct RangeObject {
  PyObject_HEAD vectorcallfunc call;
  PyObject* name;
  uint64_t start;
  uint32_t id;  // the number of the range's name in profiles, set when the range begins
};

std::string_view text_of(PyObject* name) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name, &size);
  if (text) return {text, static_cast<size_t>(size)};
  PyErr_Clear();  // the name contains lone surrogates, which UTF-8 cannot represent
  return "(not UTF-8)";
}

// Returns the number of a range's name in profiles. Names are usually interned literals, so their address identifies them. Needs the GIL.
uint32_t range_name(PyObject* name) {
  static auto* known = new std::unordered_map<PyObject*, uint32_t>;
  // A small cache by address, for the few names that a loop uses.
  struct Recent {
    PyObject* name = nullptr;
    uint32_t id = 0;
  };
  static Recent all_recent[64];
  Recent& recent = all_recent[reinterpret_cast<uintptr_t>(name) >> 4U & 63U];
  if (recent.name == name) return recent.id;
  const auto found = known->find(name);
  if (found != known->end()) {
    recent = {name, found->second};
    return found->second;
  }
  const uint32_t id = ProfileRange::name_id(text_of(name));
  constexpr size_t kMostKnown = 4096;
  if (known->size() < kMostKnown) {
    Py_INCREF(name);  // this reference keeps the string alive, so that no other string gets its address
    known->emplace(name, id);
  }
  return id;
}

PyObject* call_range(PyObject* self, PyObject* const* /*arguments*/, size_t flags, PyObject* keywords) {
  constexpr Py_ssize_t kOfExit = 3;
  auto* range = reinterpret_cast<RangeObject*>(self);
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if ((count != 0 && count != kOfExit) || keywords) {
    PyErr_SetString(PyExc_TypeError, "__enter__() of a range has no arguments, __exit__() has three");
    return nullptr;
  }
  if (count == 0) {
    if (ProfileRange::is_recorded()) range->id = range_name(range->name), range->start = ProfileRange::begin(range->id);
    Py_INCREF(self);
    return self;
  }
  if (range->start != 0) ProfileRange::end(range->id, range->start);
  range->start = 0;
  Py_RETURN_NONE;
}

// Implements the descriptors __enter__ and __exit__ of the type: both return the range itself, which is callable.
PyObject* range_itself(PyObject* descriptor, PyObject* range, PyObject* /*type*/) {
  PyObject* found = range ? range : descriptor;
  Py_INCREF(found);
  return found;
}

// Implements calls of the descriptors: contextlib.ExitStack, for example, calls type(range).__exit__(range, ...).
PyObject* call_of_range(PyObject* /*descriptor*/, PyObject* arguments, PyObject* keywords) {
  PyObject* range = PyTuple_Size(arguments) > 0 ? PyTuple_GetItem(arguments, 0) : nullptr;
  if (!range || Py_TYPE(range) != range_type) {
    PyErr_SetString(PyExc_TypeError, "the first argument is a range");
    return nullptr;
  }
  const nb::object others = nb::steal(PyTuple_GetSlice(arguments, 1, PyTuple_Size(arguments)));
  return others ? PyVectorcall_Call(range, others.ptr(), keywords) : nullptr;
}

// Up to this number of ended ranges are kept for reuse: usually, one range or a few nested ones are open. The GIL protects the list.
constexpr size_t kMostSpare = 16;
RangeObject* spare_ranges[kMostSpare];
size_t num_spare = 0;

void free_range(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_DECREF(reinterpret_cast<RangeObject*>(self)->name);
  if (num_spare < kMostSpare) {
    spare_ranges[num_spare++] = reinterpret_cast<RangeObject*>(self);
    Py_DECREF(type);
    return;
  }
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyObject* make_range(PyObject* /*module*/, PyObject* name) {
  if (!PyUnicode_Check(name)) {
    PyErr_SetString(PyExc_TypeError, "the name of a range is a str");
    return nullptr;
  }
  RangeObject* range = nullptr;
  if (num_spare > 0)
    range = reinterpret_cast<RangeObject*>(PyObject_Init(reinterpret_cast<PyObject*>(spare_ranges[--num_spare]), range_type));
  else
    range = PyObject_New(RangeObject, range_type);
  if (!range) return nullptr;
  Py_INCREF(name);
  range->call = call_range;
  range->name = name;
  range->start = 0;
  return reinterpret_cast<PyObject*>(range);
}

PyTypeObject* make_type(PyType_Spec& spec) {
  auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (!type) throw nb::python_error();
  return type;
}

void register_range(nb::module_& module) {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(RangeObject, call), READONLY, nullptr}, {}};
  static PyType_Slot slots[] = {{Py_tp_members, members},
                                {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(free_range)},
                                {0, nullptr}};
  static PyType_Slot method_slots[] = {
      {Py_tp_descr_get, reinterpret_cast<void*>(range_itself)}, {Py_tp_call, reinterpret_cast<void*>(call_of_range)}, {0, nullptr}};
  static PyType_Spec spec{"treadle._treadle.ProfileRange", sizeof(RangeObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  static PyType_Spec method_spec{"treadle._treadle.ProfileRangeMethod", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, method_slots};
  static PyMethodDef function{"profile_range", make_range, METH_O, "A range of the program, as a context manager."};
  range_type = make_type(spec), range_method_type = make_type(method_spec);
  nb::object type = nb::borrow(reinterpret_cast<PyObject*>(range_type));
  const nb::object method = nb::steal(PyObject_New(PyObject, range_method_type));
  type.attr("__enter__") = method, type.attr("__exit__") = method;
  module.attr("ProfileRange") = type;
  module.attr("ProfileRangeMethod") = nb::borrow(reinterpret_cast<PyObject*>(range_method_type));
  nb::object made = nb::steal(PyCFunction_NewEx(&function, nullptr, nullptr));
  if (!made) throw nb::python_error();
  module.attr("profile_range") = made;
}

}  // namespace

bool is_of_ranges(PyObject* callable) {
  if (Py_TYPE(callable) == range_type || Py_TYPE(callable) == range_method_type) return true;
  return PyCFunction_Check(callable) && PyCFunction_GetFunction(callable) == make_range;
}

void register_profile(nb::module_& module) {
  module.def(
      "profile_mark", [](const nb::str& name) { mark_profile(text_of(name.ptr())); }, nb::arg("name"),
      "Marks this moment in all profiles that are being taken.");
  register_profile_report(module);
  nb::class_<Profiler>(module, "NativeProfiler")
      .def("pause", &Profiler::pause)
      .def("resume", &Profiler::resume)
      .def("flush", &Profiler::flush, nb::call_guard<nb::gil_scoped_release>())
      .def("take", &take_profile, nb::arg("model"), nb::arg("peaks"));
  module.def("read_profile_recording", &read_recording, nb::arg("path"), nb::arg("model") = "", nb::arg("peaks") = true);
  register_range(module);
  register_profiled<PySession>(module);
  register_profiled<train::Trainer>(module);
  register_profiled<train::JointModule>(module);
}

}  // namespace treadle::python
