// What a device with memory and instructions of its own can compute.
#pragma once

#include <memory>

#include "graph/kernel.h"

namespace treadle {

/// A kernel for one node, with what it keeps for it; `kernel` null: the device cannot compute the node.
struct DeviceKernel {
  const KernelDef* kernel = nullptr;
  std::shared_ptr<PackedState> state;
};

class KernelTable {
 public:
  virtual ~KernelTable() = default;
  /// Of a node whose operands are plain tensors with extents that the feeds' shapes determine. The kernel reads and writes the device's
  /// memory, in the order of the stream on which it is run; it packs nothing.
  virtual DeviceKernel find(const Graph& graph, const Node& node) const = 0;
};

}  // namespace treadle
