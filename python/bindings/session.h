// Declarations that the bindings of sessions, bound runs, partial runs and stateful runs share.
#pragma once

#include <memory>
#include <set>

#include "bindings.h"
#include "numpy.h"

namespace treadle::python {

/// The Python class of a session: the session, and the names and types of its inputs and outputs, which runs look up.
struct PySession {
  PySession(const Model& model, const PySessionOptions& options);
  /// Returns the declared type of an input or an overridable initializer; an empty text for any other name.
  std::string type_of(const std::string& name) const;

  Session session;
  std::vector<ValueInfo> inputs, outputs;
  std::map<std::string, std::string, std::less<>> types;
  std::shared_ptr<nb::object> monitor;  // the monitor's function; traverse() shows it to Python's garbage collector
};

/// The Python class of a binding of inputs and outputs. Python keeps `owner` alive.
struct PyIoBinding : IoBinding {
  explicit PyIoBinding(const PySession& owner) : IoBinding(owner.session), owner(owner) {}
  const PySession& owner;
};

/// The Python class of a handle to a value that a session keeps. The session lives longer than the handle.
struct PyValueHandle {
  const PySession* session;
  ValueHandle id;
  Datum datum() const { return session->session.stored(id); }
};

/// Converts a value for the input `name`, whose declared type is `type`. Messages of errors contain the input's name.
Datum feed_from_python(const std::string& name, nb::handle value, const std::string& type, BufferScope* scope);
/// Returns the names of the inputs that get their values from the adapters in the options.
std::set<std::string> names_in_adapters(const RunOptions* options);
/// Converts the values of all inputs except those in `apart`. Missing optional inputs become empty. Raises ValueError with the names of
/// other missing inputs.
std::map<std::string, Datum> feeds_from_python(const PySession& self, const nb::dict& feeds, BufferScope* scope,
                                               const std::set<std::string>& apart = {});

}  // namespace treadle::python
