// Converts tensors to and from DLPack capsules, unversioned and versioned.
#pragma once

#include <nanobind/nanobind.h>

#include "treadle/tensor.h"

namespace nb = nanobind;

namespace treadle::python {

/// Takes the tensor out of the capsule and keeps the tensor's strides. @throws Error(invalid_argument) if the object is no capsule, or if
/// its tensor has been taken already
Tensor tensor_from_capsule(nb::handle capsule);

/// @param versioned  makes a versioned capsule, which can mark memory as read-only.
nb::object capsule_from_tensor(const Tensor& tensor, bool versioned);

}  // namespace treadle::python
