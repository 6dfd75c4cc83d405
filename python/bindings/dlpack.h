// Tensors in DLPack capsules, old and versioned.
#pragma once

#include <nanobind/nanobind.h>

#include "treadle/tensor.h"

namespace nb = nanobind;

namespace treadle::python {

/// Takes the capsule's tensor over, strides and all. @throws Error(invalid_argument) for another object, or a capsule that is empty
/// already.
Tensor tensor_from_capsule(nb::handle capsule);

/// @param versioned  the form that can say that memory is read-only.
nb::object capsule_from_tensor(const Tensor& tensor, bool versioned);

}  // namespace treadle::python
