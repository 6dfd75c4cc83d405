// Records the calls of Python functions for profiles that ask for them. The interpreter reports the calls through sys.monitoring (Python
// 3.12 and newer) or sys.setprofile. Each thread has a stack of open calls, so that every recorded call gets an end: by a return, an
// exception, the yield of a generator, or the end of the profile.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings.h"
#include "ranges.h"
#include "treadle/profile.h"

namespace treadle::python {
namespace {

// A call that has not ended. The GIL protects all data of this file.
struct OpenCall {
  const PyObject* what;  // the code object or callable; only its address is used
  uint32_t name;
  uint64_t start;
  bool is_told = false;  // true: tell_open() has already reported the call as open to the active profiles
};

struct PythonThread {
  int64_t system_id = syscall(SYS_gettid);
  std::vector<OpenCall> open;
  const PyObject* hidden = nullptr;  // not null: in a call of this code object, which is not recorded, nor is what it calls
};

std::vector<std::shared_ptr<PythonThread>>& python_threads() {
  static auto* threads = new std::vector<std::shared_ptr<PythonThread>>;
  return *threads;
}

// Returns the record of this thread. Removes records of ended threads, to which only the list still refers: all their calls have ended.
PythonThread& own_thread() {
  thread_local const std::shared_ptr<PythonThread> own = [] {
    auto made = std::make_shared<PythonThread>();
    std::erase_if(python_threads(), [](const auto& thread) { return thread.use_count() == 1; });
    python_threads().push_back(made);
    return made;
  }();
  return *own;
}

// The largest number of recorded open calls of a thread, so that endless recursion does not fill the memory.
constexpr size_t kDeepest = 100'000;

// Returns the code objects of the profiler's own functions, whose calls are not recorded. The list is short.
std::vector<const PyObject*>& hidden_codes() {
  static auto* codes = new std::vector<const PyObject*>;
  return *codes;
}

void begin_call(const PyObject* what, uint32_t name) {
  PythonThread& thread = own_thread();
  if (thread.hidden) return;
  if (const auto& hidden = hidden_codes(); std::find(hidden.begin(), hidden.end(), what) != hidden.end()) {
    thread.hidden = what;
    return;
  }
  if (thread.open.size() < kDeepest) thread.open.push_back({what, name, ProfileRange::begin()});
}

// Ends the open call of `what`, and the calls within it whose ends Python did not report. Does nothing for a call that began before the
// recording, because such a call is not on the stack.
void end_call(const PyObject* what) {
  PythonThread& thread = own_thread();
  if (thread.hidden) {
    if (what == thread.hidden) thread.hidden = nullptr;
    return;
  }
  std::vector<OpenCall>& open = thread.open;
  const auto found = std::find_if(open.rbegin(), open.rend(), [&](const OpenCall& call) { return call.what == what; });
  if (found == open.rend()) return;
  const uint64_t now = ProfileRange::begin();
  for (const PyObject* ended = nullptr; ended != what; open.pop_back()) {
    ended = open.back().what;
    ProfileRange::end_call(open.back().name, open.back().start, now);
  }
}

/// The names of called objects by their addresses. The objects stay alive, so that no other object gets such an address. Objects beyond a
/// maximum number are not kept: their names are made anew for each call.
class CallNames {
 public:
  static CallNames& get() {
    static auto* names = new CallNames;
    return *names;
  }

  uint32_t of_code(PyObject* code) {
    const auto found = known_.find({code, nullptr});
    return found != known_.end() ? found->second : add({code, nullptr}, code, code_text(code));
  }

  // Identifies a C function by its address and its module or class, because Python makes a new function object for each call of a method.
  uint32_t of_callable(PyObject* callable) {
    Key key{callable, nullptr};
    PyObject* kept = callable;
    if (PyCFunction_Check(callable)) {
      PyObject* self = PyCFunction_GetSelf(callable);
      kept = !self ? callable : PyModule_Check(self) || PyType_Check(self) ? self : reinterpret_cast<PyObject*>(Py_TYPE(self));
      key = {kept, reinterpret_cast<const void*>(PyCFunction_GetFunction(callable))};
    }
    const auto found = known_.find(key);
    return found != known_.end() ? found->second : add(key, kept, callable_text(callable));
  }

 private:
  struct Key {
    const void *object, *function;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const noexcept {
      return std::hash<const void*>()(key.object) * 31 + std::hash<const void*>()(key.function);
    }
  };
  static constexpr size_t kMostKnown = 65'536;

  uint32_t add(const Key& key, PyObject* kept, const std::string& text) {
    const uint32_t name = ProfileRange::name_id(text);
    if (known_.size() < kMostKnown) {
      Py_INCREF(kept);
      known_.emplace(key, name);
    }
    return name;
  }

  static std::string attribute(PyObject* object, const char* name) {
    PyObject* value = PyObject_GetAttrString(object, name);
    std::string text;
    if (value && PyUnicode_Check(value)) {
      Py_ssize_t size = 0;
      const char* utf8 = PyUnicode_AsUTF8AndSize(value, &size);
      if (utf8) text.assign(utf8, static_cast<size_t>(size));
    }
    Py_XDECREF(value);
    PyErr_Clear();
    return text;
  }

  // Returns a text such as "function (package/file.py:12)".
  static std::string code_text(PyObject* code) {
    std::string name = attribute(code, "co_qualname");  // exists in Python 3.11 and newer
    if (name.empty()) name = attribute(code, "co_name");
    std::string file = attribute(code, "co_filename");
    if (const size_t slash = file.rfind('/'); slash != std::string::npos && slash > 0)
      if (const size_t folder = file.rfind('/', slash - 1); folder != std::string::npos) file.erase(0, folder + 1);
    PyObject* line = PyObject_GetAttrString(code, "co_firstlineno");
    const long number = line ? PyLong_AsLong(line) : 0;
    Py_XDECREF(line);
    PyErr_Clear();
    return name + " (" + file + ":" + std::to_string(number) + ")";
  }

  // Returns a text such as "numpy.dot" or "list.append". For an object of a class that the program defines, returns the name of the class,
  // because reading attributes of the object may run code.
  static std::string callable_text(PyObject* callable) {
    PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(callable));
    const bool plain = PyType_Check(callable) || (PyType_GetFlags(Py_TYPE(callable)) & Py_TPFLAGS_HEAPTYPE) == 0 ||
                       attribute(type, "__module__") == "nanobind";
    PyObject* const described = plain ? callable : type;
    std::string name = attribute(described, "__qualname__");
    if (name.empty()) name = attribute(described, "__name__");
    const bool is_method = PyCFunction_Check(callable) && PyCFunction_GetSelf(callable) && !PyModule_Check(PyCFunction_GetSelf(callable));
    const std::string module = is_method ? "" : attribute(described, "__module__");
    return module.empty() ? name : module + "." + name;
  }

  std::unordered_map<Key, uint32_t, KeyHash> known_;
};

PyObject *function_type = nullptr, *method_type = nullptr;  // the types of functions and of methods written in Python

bool is_function_of_python(PyObject* callable) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(callable));
  return type == function_type || type == method_type;
}

// Calls `callback`, and catches exceptions, so that none reaches the profiled program. If memory runs out, the call is not recorded.
template <typename Callback>
PyObject* guarded_callback(const Callback& callback) {
  try {
    callback();
  } catch (const std::exception&) {
  }
  Py_RETURN_NONE;
}

using Arguments = PyObject* const*;

// The arguments of sys.monitoring's callbacks are (code, offset, ...); for calls of C functions, the third one is the callable.

PyObject* on_start(PyObject* /*module*/, Arguments arguments, Py_ssize_t count) {
  return guarded_callback([&] {
    if (count >= 1) begin_call(arguments[0], CallNames::get().of_code(arguments[0]));
  });
}

PyObject* on_end(PyObject* /*module*/, Arguments arguments, Py_ssize_t count) {
  return guarded_callback([&] {
    if (count >= 1) end_call(arguments[0]);
  });
}

// Records a call of a C function. Skips functions written in Python, because Python reports their start as a separate event.
PyObject* on_call(PyObject* /*module*/, Arguments arguments, Py_ssize_t count) {
  return guarded_callback([&] {
    if (count >= 3 && !is_function_of_python(arguments[2]) && !is_of_ranges(arguments[2]))
      begin_call(arguments[2], CallNames::get().of_callable(arguments[2]));
  });
}

PyObject* on_c_end(PyObject* /*module*/, Arguments arguments, Py_ssize_t count) {
  return guarded_callback([&] {
    if (count >= 3 && !is_of_ranges(arguments[2])) end_call(arguments[2]);
  });
}

// The callback for sys.setprofile, with the arguments (frame, event, arg). Python reports the resumption of a generator as a call, and a
// yield as a return.
PyObject* on_profile(PyObject* /*module*/, Arguments arguments, Py_ssize_t count) {
  return guarded_callback([&] {
    if (count < 3) return;
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(arguments[1], &size);
    if (!text) return PyErr_Clear();
    const std::string_view event(text, static_cast<size_t>(size));
    if (event.starts_with("c_") && is_of_ranges(arguments[2])) return;
    if (event == "c_call") return begin_call(arguments[2], CallNames::get().of_callable(arguments[2]));
    if (event == "c_return" || event == "c_exception") return end_call(arguments[2]);
    auto* code = reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(arguments[0])));
    if (event == "call")
      begin_call(code, CallNames::get().of_code(code));
    else
      end_call(code);
    Py_DECREF(code);
  });
}

// Ends all open calls on all threads. Called when the recording of calls ends.
void end_all() {
  const uint64_t now = ProfileRange::begin();
  own_thread().hidden = nullptr;
  for (const auto& thread : python_threads())
    for (; !thread->open.empty(); thread->open.pop_back())
      ProfileRange::end_call(thread->open.back().name, thread->open.back().start, now, thread->system_id);
}

// Reports open calls on all threads, once each. Called when one of several profiles ends, because that profile does not get their ends.
void tell_open() {
  for (const auto& thread : python_threads())
    for (OpenCall& call : thread->open)
      if (!std::exchange(call.is_told, true)) ProfileRange::call_is_open(call.name, call.start, thread->system_id);
}

PyCFunction as_function(PyObject* (*function)(PyObject*, Arguments, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace

void register_python_calls(nb::module_& module) {
  static PyMethodDef methods[] = {{"calls_on_start", as_function(on_start), METH_FASTCALL, nullptr},
                                  {"calls_on_end", as_function(on_end), METH_FASTCALL, nullptr},
                                  {"calls_on_call", as_function(on_call), METH_FASTCALL, nullptr},
                                  {"calls_on_c_end", as_function(on_c_end), METH_FASTCALL, nullptr},
                                  {"calls_on_profile", as_function(on_profile), METH_FASTCALL, nullptr}};
  for (PyMethodDef& method : methods) {
    nb::object made = nb::steal(PyCFunction_NewEx(&method, nullptr, nullptr));
    if (!made) throw nb::python_error();
    module.attr(method.ml_name) = made;
  }
  module.def("end_python_calls", &end_all);
  module.def("tell_open_python_calls", &tell_open);
  module.def(
      "hide_calls", [](const nb::object& code) { hidden_codes().push_back(nb::object(code).release().ptr()); }, nb::arg("code"));
  // Stops the recording on this thread until its current call, a call of `code`, ends. With None, the recording goes on.
  module.def(
      "hide_rest_of_call", [](const nb::object& code) { own_thread().hidden = code.is_none() ? nullptr : code.ptr(); },
      nb::arg("code").none());
  const nb::module_ types = nb::module_::import_("types");
  function_type = nb::object(types.attr("FunctionType")).release().ptr();
  method_type = nb::object(types.attr("MethodType")).release().ptr();
}

}  // namespace treadle::python
