// The elements of small tensors as text that people read.
#pragma once

#include <string>

#include "treadle/tensor.h"

namespace treadle {

/// Returns the elements, such as "2,-1", "0.5" or "true". Empty for string, packed and complex dtypes, and if there are no elements.
std::string elements_text(const Tensor& tensor);

}  // namespace treadle
