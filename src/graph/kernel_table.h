// The kernels of a device that has its own memory and instructions.
#pragma once

#include <memory>

#include "graph/kernel.h"

namespace treadle {

/// A device's kernel for one node, and the kernel's state. `kernel` is null if the device cannot compute the node.
struct DeviceKernel {
  const KernelDef* kernel = nullptr;
  std::shared_ptr<PackedState> state;
};

class KernelTable {
 public:
  virtual ~KernelTable() = default;
  /// Finds the kernel for a node. @pre its operands are dense tensors with known dtypes; ranks and extents may become known in the run,
  /// which then binds the kernel each time. The kernel uses device memory, in the order of the stream on which it runs, but its inputs in
  /// OpDef::value_inputs are in host memory. It does not pack weights, and it allocates outputs if and only if the host's kernel does.
  virtual DeviceKernel find(const Graph& graph, const Node& node) const = 0;
};

}  // namespace treadle
