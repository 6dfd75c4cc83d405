// Converts values of any ONNX type from and to Python objects.
#pragma once

#include <string>

#include "bindings.h"
#include "numpy.h"

namespace treadle::python {

/// Converts an array, list, dict, None, OrtValue or SparseTensor.
/// @param type   type that the model declares, as in ValueInfo; empty: determined by the object.
/// @param scope  as for tensor_from_array(); used only for plain tensors.
Datum datum_from_python(nb::handle value, const std::string& type, BufferScope* scope);

/// Converts a value to an array, list, dict, None or SparseTensor.
nb::object datum_to_python(const Datum& datum);

/// Like datum_to_python(), for outputs of a run. The caller owns the result: an array is copied if another object also refers to its
/// memory.
nb::object output_to_python(Datum output);
/// Returns a value for an OrtValue: one that is the only user of its memory. The value is copied if its memory has other users.
Datum detach(Datum output);

/// Returns the type as ONNX Runtime writes it: "tensor(float)", "seq(tensor(int64))", "map(string,tensor(float))".
std::string onnx_type_text(const Datum& datum);

}  // namespace treadle::python
