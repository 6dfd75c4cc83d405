// The kernels of a device that has its own memory and instructions.
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
  /// Finds the kernel for a node. @pre its operands are dense tensors of known types; ranks and extents may come out in the run, which then
  /// binds the kernel anew. The kernel uses device memory, in the order of the stream on which it is run, but inputs in
  /// OpDef::value_inputs are the host's. It does not pack weights, and allocates outputs if and only if the host's kernel does.
  virtual DeviceKernel find(const Graph& graph, const Node& node) const = 0;
};

}  // namespace treadle
