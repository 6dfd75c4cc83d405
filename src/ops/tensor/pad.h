// Derives the data that kernels of every device need to compute a Pad node: its mode, and its pads in elements.
#pragma once

#include "graph/kernel.h"
#include "kernels/movement/pad.h"

namespace treadle::ops {

/// Returns the mode. @throws Error(invalid_argument) if there is no such mode
kernels::PadMode pad_mode(const Attributes& attributes);
/// Returns the plan of a Pad node. @throws Error(invalid_argument) if pads and axes do not fit the data
kernels::PadPlan bind_pad(BindContext& c);
/// The plan of a CenterCropPad node.
kernels::PadPlan bind_center(BindContext& c);

}  // namespace treadle::ops
