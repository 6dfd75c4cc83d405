// Why a node's kernel is none of the operator's others. Apart from kernel.h, as only profiles ask.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/kernel.h"

namespace treadle {

/// A kernel of a node's operator that does not compute the node.
struct UnusedKernel {
  std::string name, why;
};

/// All but the one that select_kernel() chooses. Kernels that are alike but for their dtypes are one entry.
/// @param chosen  the name of the kernel that computes the node; one that the operator does not have is a device's
/// @throws Error as the kernels' `declines`
std::vector<UnusedKernel> unused_kernels(const Graph& graph, const Node& node, std::string_view chosen);

}  // namespace treadle
