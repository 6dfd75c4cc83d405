// Finds values that only the host's part of kernels reads, such as the extents, axes and scales of a Resize.
#pragma once

#include <set>

#include "graph/graph.h"
#include "graph/op_def.h"

namespace treadle::exec {

/// Returns true if a node reads only the shapes of its inputs. Then the inputs' elements may be on any device.
bool reads_only_shapes(const OpDef& op);

/// Finds the nodes that compute values for the host's part of kernels from shapes, constants and small feeds. These nodes stay on the host
/// even if the device has kernels for them, because their results would have to be copied back.
std::set<const Node*> nodes_of_settings(const Graph& graph);

}  // namespace treadle::exec
