// Values of any ONNX type from Python objects and back.
#pragma once

#include <string>

#include "bindings.h"
#include "numpy.h"

namespace treadle::python {

/// Arrays, lists, dicts, None, OrtValue and SparseTensor objects.
/// @param type   the type the model declares, as ValueInfo writes it; empty: judged by the object alone.
/// @param scope  as tensor_from_array; only for plain tensors, others keep their memory themselves.
Datum datum_from_python(nb::handle value, const std::string& type, BufferScope* scope);

/// Arrays, lists, dicts, None and SparseTensor objects.
nb::object datum_to_python(const Datum& datum);

/// As datum_to_python for a run's output: arrays that something else still refers to are copied, so that the caller owns what it gets.
nb::object output_to_python(Datum output);
/// The same for values that stay in the library.
Datum detach(Datum output);

/// "tensor(float)", "seq(tensor(int64))", "map(string,tensor(float))" …, as ONNX Runtime writes it.
std::string onnx_type_text(const Datum& datum);

}  // namespace treadle::python
