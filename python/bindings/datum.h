// Converts Python objects to values of any ONNX type, and back.
#pragma once

#include <string>

#include "bindings.h"
#include "numpy.h"

namespace treadle::python {

/// Converts an array, list, dict, None, OrtValue or SparseTensor to a value.
/// @param type   the type that the model declares, as in ValueInfo; empty: the object determines the type.
/// @param scope  as for tensor_from_array(); only plain tensors use it.
Datum datum_from_python(nb::handle value, const std::string& type, BufferScope* scope);

/// Converts a value to an array, list, dict, None or SparseTensor.
nb::object datum_to_python(const Datum& datum);

/// Works like datum_to_python(), for outputs of a run. Copies a tensor if other objects also use its memory, so that the caller alone owns
/// the result.
nb::object output_to_python(Datum output);
/// Returns the value, or a copy of it if other objects also use its memory: the result is the only user of its memory.
Datum detach(Datum output);

/// Returns the type as ONNX Runtime writes it, such as "tensor(float)", "seq(tensor(int64))" or "map(string,tensor(float))".
std::string onnx_type_text(const Datum& datum);

}  // namespace treadle::python
