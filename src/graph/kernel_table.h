// Kernels of a device with its own memory and instructions.
#pragma once

#include <memory>

#include "graph/kernel.h"

namespace treadle {

/// A kernel for one node and its state. `kernel` is null if the device cannot compute the node.
struct DeviceKernel {
  const KernelDef* kernel = nullptr;
  std::shared_ptr<PackedState> state;
};

class KernelTable {
 public:
  virtual ~KernelTable() = default;
  /// Finds the kernel for a node. @pre its operands are dense tensors whose extents the feeds' shapes determine. The kernel uses device
  /// memory, in the order of the stream on which it is run. It does not pack weights.
  virtual DeviceKernel find(const Graph& graph, const Node& node) const = 0;
};

}  // namespace treadle
