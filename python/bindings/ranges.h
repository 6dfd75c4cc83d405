// Tells calls of the profiler's own ranges from other Python calls.
#pragma once

#include <Python.h>

namespace treadle::python {

/// True for profile_range(), and for the __exit__ of the range that it returns.
bool is_of_ranges(PyObject* callable);

}  // namespace treadle::python
