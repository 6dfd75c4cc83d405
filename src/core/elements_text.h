// Elements of small tensors, for people.
#pragma once

#include <string>

#include "treadle/tensor.h"

namespace treadle {

/// "2,-1", "0.5", "true". Empty for strings, packed and complex elements, and where there are none.
std::string elements_text(const Tensor& tensor);

}  // namespace treadle
