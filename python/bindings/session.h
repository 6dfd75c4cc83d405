// Code shared by the bindings of sessions, bound runs and partial runs.
#pragma once

#include <memory>
#include <set>

#include "bindings.h"
#include "numpy.h"

namespace treadle::python {

/// A session, with the names and types that runs look up.
struct PySession {
  PySession(const Model& model, const PySessionOptions& options);
  /// Returns the declared type of an input or overridable initializer; empty for another name.
  std::string type_of(const std::string& name) const;

  Session session;
  std::vector<ValueInfo> inputs, outputs;
  std::map<std::string, std::string, std::less<>> types;
  std::shared_ptr<nb::object> monitor;  // called by the session; declared to the garbage collector, as it often refers to the session
};

/// A binding of inputs and outputs. Python keeps its session alive.
struct PyIoBinding : IoBinding {
  explicit PyIoBinding(const PySession& owner) : IoBinding(owner.session), owner(owner) {}
  const PySession& owner;
};

/// A value that a session keeps. The session lives longer than this handle.
struct PyValueHandle {
  const PySession* session;
  ValueHandle id;
  Datum datum() const { return session->session.stored(id); }
};

/// Converts a value for the input `name` of the declared `type`. Errors name the input.
Datum feed_from_python(const std::string& name, nb::handle value, const std::string& type, BufferScope* scope);
/// Returns the names of the inputs that the options' adapters feed.
std::set<std::string> names_in_adapters(const RunOptions* options);
/// Converts all inputs except those in `apart`. Missing optional ones become empty. Raises ValueError naming other missing ones.
std::map<std::string, Datum> feeds_from_python(const PySession& self, const nb::dict& feeds, BufferScope* scope,
                                               const std::set<std::string>& apart = {});

}  // namespace treadle::python
