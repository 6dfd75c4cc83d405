// Finds out why the other kernels of an operator are not used for a node. Not in kernel.h, because only profiles need it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/kernel.h"

namespace treadle {

/// A kernel of the node's operator that is not used, and the reason for this.
struct UnusedKernel {
  std::string name, why;
};

/// Returns all kernels except the one that select_kernel() chooses. Kernels that differ only in their dtypes form one entry.
/// @param chosen  name of the kernel that computes the node; if the operator has no kernel of this name, it is a device's kernel
/// @throws Error from the kernels' `declines`
std::vector<UnusedKernel> unused_kernels(const Graph& graph, const Node& node, std::string_view chosen);

}  // namespace treadle
