// Derives the parameters of Resize from a node's operands and attributes. The kernels of all devices use them.
#pragma once

#include "graph/kernel.h"
#include "kernels/image/resize.h"

namespace treadle::ops {

/// Returns the options of a Resize. @throws Error(not_implemented) for an unknown mode
kernels::ResizeOptions resize_options(const Attributes& attributes);

/// The axes whose extent changes, sorted from the largest reduction to the largest growth, which keeps intermediate results small.
struct ResizePlan {
  kernels::ResizeOptions options;
  int count = 0;
  kernels::ResizeAxis axes[kMaxRank];
  int axis[kMaxRank] = {};
  Shape in, out;

  static ResizePlan make(const BindContext& c);
};

}  // namespace treadle::ops
