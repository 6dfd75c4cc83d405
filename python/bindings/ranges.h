// Distinguishes the calls that begin and end ranges of a profile from other Python calls.
#pragma once

#include <Python.h>

namespace treadle::python {

/// Returns true if the callable is profile_range(), or if it implements __enter__ and __exit__ of a range.
bool is_of_ranges(PyObject* callable);

}  // namespace treadle::python
