// What the bindings of a session and of its bound and partial runs share.
#pragma once

#include <memory>
#include <set>

#include "bindings.h"
#include "numpy.h"

namespace treadle::python {

/// A session and what a run needs to look up.
struct PySession {
  PySession(const Model& model, const PySessionOptions& options);
  /// The declared type of an input or overridable initializer; empty for another name.
  std::string type_of(const std::string& name) const;

  Session session;
  std::vector<ValueInfo> inputs, outputs;
  std::map<std::string, std::string, std::less<>> types;
  std::shared_ptr<nb::object> monitor;  // what the session calls, and the collector must see: it often refers to the session
};

/// A binding and the session it belongs to, which Python keeps alive.
struct PyIoBinding : IoBinding {
  explicit PyIoBinding(const PySession& owner) : IoBinding(owner.session), owner(owner) {}
  const PySession& owner;
};

/// A value that a session keeps; the session outlives it.
struct PyValueHandle {
  const PySession* session;
  ValueHandle id;
  Datum datum() const { return session->session.stored(id); }
};

/// A value for the input `name` of the declared `type`; errors name the input.
Datum feed_from_python(const std::string& name, nb::handle value, const std::string& type, BufferScope* scope);
/// Names that the options' adapters feed.
std::set<std::string> names_in_adapters(const RunOptions* options);
/// All inputs but those in `apart`, complete; missing optional ones become empty. Raises ValueError naming the missing ones.
std::map<std::string, Datum> feeds_from_python(const PySession& self, const nb::dict& feeds, BufferScope* scope,
                                               const std::set<std::string>& apart = {});

}  // namespace treadle::python
