// The gradient of a normalisation's gradient.
#pragma once

#include <vector>

#include "graph/gradient.h"

namespace treadle::ops::gradients {

/// The rule of a node that gives dX, dscale and perhaps dbias of dY, X and scale.
/// @param axes   those that mean and deviation are taken over
/// @param scale  the node's, of a shape that broadcasts to X
std::vector<ValueId> second_normalization(GradientContext& g, const std::vector<int64_t>& axes, bool centred, ValueId scale);

}  // namespace treadle::ops::gradients
