// Booleans from outside. C++ and the kernels know two values of a byte that is a boolean, files and callers' memory may hold any.
#pragma once

#include "treadle/datum.h"
#include "treadle/tensor.h"

namespace treadle {

/// The tensor itself, unless it has booleans that are neither 0 nor 1: then a copy in which those are 1, as NumPy and onnxruntime read
/// them. Tensors on devices are taken as they are.
Tensor with_valid_booleans(const Tensor& tensor);
/// The same for a tensor, or the tensors of a sequence, optional, map or sparse tensor.
Datum with_valid_booleans(const Datum& datum);

}  // namespace treadle
