// Determines the axes that a reduction reduces.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

/// Returns a bit for each axis that a node such as ReduceSum reduces: the axes in its input `axes`; if there are none, all axes, or none
/// with `noop_with_empty_axes`.
uint32_t reduced_axes(const BindContext& c);

}  // namespace treadle::ops
