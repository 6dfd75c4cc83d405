// Ranges that the program marks, as Python's calls know them.
#pragma once

#include <Python.h>

namespace treadle::python {

/// Whether it is profile_range(), or the end of what that gives: the profiler's own calls.
bool is_of_ranges(PyObject* callable);

}  // namespace treadle::python
