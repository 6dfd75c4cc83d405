// A profile that Python holds, and its report.
#pragma once

#include <nanobind/ndarray.h>

#include "bindings.h"
#include "treadle/profile_report.h"

namespace treadle::python {

struct PyProfile {
  Profile profile;  ///< has no events if it was read from JSON
  ProfileReport report;
};

void register_profile_report(nb::module_& module);

}  // namespace treadle::python
