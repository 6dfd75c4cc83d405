// Declares the second derivative of normalizations.
#pragma once

#include <vector>

#include "graph/gradient.h"

namespace treadle::ops::gradients {

/// The gradient rule of a node that computes dX, dscale and possibly dbias from dY, X and scale.
/// @param axes   the axes over which mean and deviation are computed
/// @param scale  the node's scale, in a shape that broadcasts to X
std::vector<ValueId> second_normalization(GradientContext& g, const std::vector<int64_t>& axes, bool centered, ValueId scale);

}  // namespace treadle::ops::gradients
