// Computes the sums over windows for the interpreter's convolutions.
#pragma once

#include <functional>

#include "tests/graphs/interpreter.h"

namespace treadle::graphs {

/// Convolves x - x_zero with w - w_zero(filter), by the node's attributes. Float sums are not rounded.
Array convolve(Call& c, const Array& x, const Array& w, DType dtype, double x_zero, const std::function<double(int64_t)>& w_zero);

}  // namespace treadle::graphs
