// Finds the axes over which a reduction reduces.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

/// Returns a bit mask of the axes that a node like ReduceSum reduces. These are the axes in its input `axes`. If there are none, they are
/// all axes, or no axes if the attribute `noop_with_empty_axes` is set.
uint32_t reduced_axes(const BindContext& c);

}  // namespace treadle::ops
