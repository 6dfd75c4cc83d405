// Converts tensors to and from DLPack capsules, unversioned and versioned.
#pragma once

#include <nanobind/nanobind.h>

#include "treadle/tensor.h"

namespace nb = nanobind;

namespace treadle::python {

/// Takes the tensor out of the capsule, keeping its strides. @throws Error(invalid_argument) for another object, or a capsule whose tensor
/// has been taken.
Tensor tensor_from_capsule(nb::handle capsule);

/// @param versioned  makes a versioned capsule, which can mark memory as read-only.
nb::object capsule_from_tensor(const Tensor& tensor, bool versioned);

}  // namespace treadle::python
