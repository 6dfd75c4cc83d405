// Converts tensors to DLPack capsules and back. A capsule is a Python object, in DLPack's old (unversioned) or new (versioned) form.
#pragma once

#include <nanobind/nanobind.h>

#include "treadle/tensor.h"

namespace nb = nanobind;

namespace treadle::python {

/// Takes the tensor out of the capsule; the tensor keeps its strides. @throws Error(invalid_argument) if the object is no DLPack capsule,
/// or if another consumer has already taken the tensor
Tensor tensor_from_capsule(nb::handle capsule);

/// @param versioned  true: makes a versioned capsule, which can mark the memory as read-only.
nb::object capsule_from_tensor(const Tensor& tensor, bool versioned);

}  // namespace treadle::python
