// Derives the parameters of Pad and CenterCropPad from a node's operands and attributes. The kernels of all devices use them.
#pragma once

#include "graph/kernel.h"
#include "kernels/movement/pad.h"

namespace treadle::ops {

/// Returns the mode of a Pad. @throws Error(invalid_argument) if the attribute names an unknown mode
kernels::PadMode pad_mode(const Attributes& attributes);
/// Returns the pads of a Pad node, in elements. @throws Error(invalid_argument) if pads and axes do not match the data
kernels::PadPlan bind_pad(BindContext& c);
/// Returns the pads of a CenterCropPad node, in elements; negative ones remove elements.
kernels::PadPlan bind_center(BindContext& c);

}  // namespace treadle::ops
