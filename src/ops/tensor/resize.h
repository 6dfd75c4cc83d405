// Derives the data that kernels of every device need to compute a Resize node.
#pragma once

#include "graph/kernel.h"
#include "kernels/image/resize.h"

namespace treadle::ops {

/// Returns the options. @throws Error(not_implemented) for a mode that does not exist
kernels::ResizeOptions resize_options(const Attributes& attributes);

/// The axes that change, sorted from the largest reduction to the largest growth, so that intermediate results are as small as possible.
struct ResizePlan {
  kernels::ResizeOptions options;
  int count = 0;
  kernels::ResizeAxis axes[kMaxRank];
  int axis[kMaxRank] = {};
  Shape in, out;

  static ResizePlan make(const BindContext& c);
};

}  // namespace treadle::ops
