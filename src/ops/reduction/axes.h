// The axes that a reduction takes.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

/// A bit for each axis that a node such as ReduceSum reduces: what its input `axes` names; if it names none, all, or none with
/// `noop_with_empty_axes`.
uint32_t reduced_axes(const BindContext& c);

}  // namespace treadle::ops
