// Normalizes booleans from outside. C++ and the kernels require bytes of 0 or 1, but files and callers' memory may hold any byte.
#pragma once

#include "treadle/datum.h"
#include "treadle/tensor.h"

namespace treadle {

/// Returns the tensor itself, or a copy if it contains booleans other than 0 and 1. In the copy such bytes are 1, as NumPy and onnxruntime
/// interpret them. Tensors on devices are returned unchecked.
Tensor with_valid_booleans(const Tensor& tensor);
/// Normalizes the tensor, or all tensors of a sequence, optional, map or sparse tensor.
Datum with_valid_booleans(const Datum& datum);

}  // namespace treadle
