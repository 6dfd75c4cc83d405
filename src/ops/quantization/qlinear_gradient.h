// Gradients of quantised products that round their result: straight-through estimators.
#pragma once

#include <vector>

#include "graph/gradient.h"

namespace treadle::ops::gradients {

std::vector<ValueId> qlinear_matmul(GradientContext& g);
std::vector<ValueId> qlinear_conv(GradientContext& g);

}  // namespace treadle::ops::gradients
