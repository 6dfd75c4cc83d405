// Elements of small tensors as text, for people.
#pragma once

#include <string>

#include "treadle/tensor.h"

namespace treadle {

/// Returns "2,-1", "0.5", "true". Empty for string, packed and complex dtypes, and if there are no elements.
std::string elements_text(const Tensor& tensor);

}  // namespace treadle
