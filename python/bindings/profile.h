// The Python class of a profile, and its conversion to Python objects.
#pragma once

#include <nanobind/ndarray.h>

#include "bindings.h"
#include "treadle/profile_report.h"

namespace treadle::python {

struct PyProfile {
  Profile profile;  ///< without events if the report was read from JSON
  ProfileReport report;
};

void register_profile_report(nb::module_& module);

}  // namespace treadle::python
